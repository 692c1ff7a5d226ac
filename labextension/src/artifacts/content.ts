/** The bytes of a file, and blob addresses with which only this page can show them. */
import { IArtifactSaved } from '../generated/events';
import { IArtifactContent, IHost } from '../view/host';

/** A file as its event describes it. */
export type IArtifact = Pick<IArtifactSaved, 'id' | 'path' | 'mime' | 'size' | 'sha256'>;

export interface ILoaded {
  artifact: IArtifact;
  host: IHost;
  bytes: Uint8Array;
  preview: IArtifactContent['preview'];
}

/** Load a file. If its content is missing, return a sentence with the reason. */
export async function load(artifact: IArtifact, host: IHost): Promise<ILoaded | string> {
  const content = await host.artifact(artifact.path);
  if (content?.data) {
    return { artifact, host, bytes: content.data, preview: content.preview };
  }
  return content?.omitted || host.trans('The file is not kept with this run.');
}

/** Decode at most `limit` bytes as UTF-8 text, without a byte order mark. */
export function decode(bytes: Uint8Array, limit: number): string {
  return new TextDecoder('utf-8').decode(bytes.subarray(0, limit));
}

export function blobOf(bytes: Uint8Array, type: string): Blob {
  return new Blob([bytes as Uint8Array<ArrayBuffer>], { type });
}

const held = new FinalizationRegistry<string>(url => URL.revokeObjectURL(url));

/**
 * Return a blob address that lasts as long as `owner`. The caller chooses `type`, so that no browser takes the content
 * for a page.
 *
 * The property `lsnAddress` prevents an early end: Chromium collects the script object of an element that is still in
 * the page, unless the object has a property of its own.
 */
export function addressFor(owner: HTMLElement & { lsnAddress?: string }, bytes: Uint8Array, type: string): string {
  const url = URL.createObjectURL(blobOf(bytes, type));
  held.register(owner, url);
  owner.lsnAddress = url;
  return url;
}

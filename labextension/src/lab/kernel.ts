/** Subcommands of `%sandbox`, executed in a notebook's kernel without a cell. */

import { Kernel, KernelMessage } from '@jupyterlab/services';

/** Execute a subcommand; what it printed. Rejects with what went wrong. Its displays appear where the run's card is. */
export function executeMagic(kernel: Kernel.IKernelConnection, line: string): Promise<string> {
  return execute(kernel, `get_ipython().run_line_magic('sandbox', ${pythonText(line)})`);
}

/** Wait until the kernel executes nothing: also when it has died, which the next request says. */
export function whenIdle(kernel: Kernel.IKernelConnection): Promise<void> {
  return new Promise(resolve => {
    const look = () => {
      if (kernel.status !== 'busy') {
        kernel.statusChanged.disconnect(look);
        resolve();
      }
    };
    kernel.statusChanged.connect(look);
    look();
  });
}

/** As one word of a line that is split as a shell does it. */
export function quoted(text: string): string {
  return `'${text.replace(/'/g, `'"'"'`)}'`;
}

/** As a literal of Python; JSON's escapes are Python's, but a half of a pair of surrogates is no text. */
function pythonText(text: string): string {
  const whole = text.replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, '\ufffd');
  return JSON.stringify(whole).replace(
    /[\u007f-\u009f\u2028\u2029]/g,
    one => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`
  );
}

async function execute(kernel: Kernel.IKernelConnection, code: string): Promise<string> {
  const future = kernel.requestExecute({ code, store_history: false, stop_on_error: false, allow_stdin: false });
  let printed = '';
  let problem = '';
  future.onIOPub = message => {
    if (KernelMessage.isStreamMsg(message)) {
      printed += message.content.text;
    } else if (KernelMessage.isErrorMsg(message)) {
      problem = message.content.evalue || message.content.ename;
    }
  };
  const reply = await future.done;
  if (reply.content.status !== 'ok') {
    throw new Error(problem || printed || reply.content.status);
  }
  return printed.trim();
}

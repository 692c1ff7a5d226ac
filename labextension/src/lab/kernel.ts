/** Subcommands of `%sandbox`, executed in a notebook's kernel without a cell. */

import { Kernel, KernelMessage } from '@jupyterlab/services';

/** Python code that loads the extension without output, unless it is loaded. */
const LOAD = "get_ipython().extension_manager.load_extension('llm_sandbox_nb')";

/** Execute a subcommand and return its output. Rejects with the error. Displays appear where the run's card is. */
export function executeMagic(kernel: Kernel.IKernelConnection, line: string): Promise<string> {
  return execute(kernel, magicCode(line));
}

/** As `executeMagic`, but load the extension first: the kernel may be new, or may have been restarted. */
export function executeMagicAnew(kernel: Kernel.IKernelConnection, line: string): Promise<string> {
  return execute(kernel, `${LOAD}\n${magicCode(line)}`);
}

/** Wait until the kernel is not busy. A kernel that died is not busy either; the next request reports its death. */
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

/** Quote a text as one word of a line that is split as by a shell. */
export function quoted(text: string): string {
  return `'${text.replace(/'/g, `'"'"'`)}'`;
}

function magicCode(line: string): string {
  return `get_ipython().run_line_magic('sandbox', ${pythonText(line)})`;
}

/** Write a text as a Python literal. JSON's escapes are Python's, but Python refuses half a pair of surrogates. */
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

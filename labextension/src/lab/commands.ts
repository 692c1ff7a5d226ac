/** Commands without arguments. */

import { JupyterFrontEnd } from '@jupyterlab/application';

export function addCommand(
  app: JupyterFrontEnd,
  id: string,
  label: string,
  execute: () => void | Promise<void>,
  isEnabled: () => boolean = () => true
): void {
  const describedBy = { args: { type: 'object', properties: {} } };
  app.commands.addCommand(id, { label, describedBy, isEnabled, execute: () => execute() });
}

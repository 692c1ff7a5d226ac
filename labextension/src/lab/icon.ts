/** A box with a prompt in it; in the colour that Lab gives to icons. */

import { LabIcon } from '@jupyterlab/ui-components';

export const sandboxIcon = new LabIcon({
  name: 'llm-sandbox:sandbox',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" height="16" viewBox="0 0 24 24">' +
    '<path class="jp-icon3 jp-icon-selectable" fill="#616161" fill-rule="evenodd" ' +
    'd="M6.4 3h11.2L21 7.6V19a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V7.6zM7.4 5 5.9 7h12.2l-1.5-2zM5 9v10h14V9z"/>' +
    '<path class="jp-icon3 jp-icon-selectable" fill="#616161" ' +
    'd="M8.1 10.8 12 14l-3.9 3.2-1.2-1.5L9 14l-2.1-1.7zM12.5 15.5h4.6v1.9h-4.6z"/></svg>'
});

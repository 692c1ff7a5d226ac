/** The renderer of outputs with what the server part of the extension offers to it, in one bundle. */

export { liveOffer, pastOffer } from '../src/live';
export { default as extensions } from '../src/mime';
export { MimeHost } from '../src/mime-host';

/** Links to a step of a run: the address of this page with the run and the step behind `#`. */

const FORM = /^#lsn-run=([\w.-]{1,200})&step=(\d{1,6})$/;

export function stepLink(runId: string, step: number): string {
  const { origin, pathname, protocol, href } = window.location;
  const page = protocol === 'file:' ? href.replace(/#.*$/s, '') : `${origin}${pathname}`;
  return `${page}#lsn-run=${encodeURIComponent(runId)}&step=${step}`;
}

/** Return the step of this run to which the page's address leads; null if it leads to no step of this run. */
export function linkedStep(runId: string): number | null {
  const found = FORM.exec(window.location.hash);
  return found && found[1] === encodeURIComponent(runId) ? Number(found[2]) : null;
}

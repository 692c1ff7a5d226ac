/** The buttons for a step at the end of its line, shown on hover and on focus. */

import { alwaysButton } from './breakpoints';
import { makeButton } from './dom';
import { IStep, Trajectory } from '../trajectory/fold';
import { IHost } from './host';

export type StepAction = 'rewind' | 'fork' | 'files' | 'link';

/** Fill `place` with the buttons for which the host has a service. */
export function fillStepActions(
  place: HTMLElement,
  step: IStep,
  host: IHost,
  act: (action: StepAction, step: IStep) => void,
  trajectory: Trajectory
): void {
  const { trans, timeTravel, history, controls, decisions } = host;
  const always = controls && decisions ? alwaysButton(step.calls[0], trajectory, decisions, host) : null;
  const made: [StepAction, string, string][] = [];
  if (timeTravel) {
    made.push(['rewind', trans('Rewind'), trans('Rewind to the end of step %1', step.number)]);
    made.push(['fork', trans('Fork'), trans('Fork: a second run from step %1', step.number)]);
  }
  if (history) {
    made.push(['files', trans('Files'), trans('Files at step %1', step.number)]);
  }
  made.push(['link', trans('Link'), trans('Link to step %1', step.number)]);
  place.replaceChildren(
    ...made.map(([action, label, name]) =>
      makeButton(label, () => act(action, step), { 'aria-label': name, title: name })
    ),
    ...(always ? [always] : [])
  );
}

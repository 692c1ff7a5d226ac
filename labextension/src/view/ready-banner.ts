/** The banner after a rewind: what became of the later steps, and the ways to continue from here. */

import { ArgumentsEditor, editArea } from './arguments';
import { errorText, h, makeButton, plainText } from './dom';
import { ICall, Trajectory } from '../trajectory/fold';
import { IRewound } from '../generated/events';
import { IHost } from './host';

type Open = 'say' | 'edit' | null;

export class ReadyBanner {
  readonly node = h('div', { class: 'lsn-ready' });
  private _status = h('span', { class: 'lsn-note', role: 'status' });
  private _form = h('div', { class: 'lsn-ready-form', hidden: true });
  private _open: Open = null;
  private _shown: IRewound | null = null;
  private _drawn = '';
  private _busy = false;
  private _wanted = false;

  constructor(
    private _trajectory: Trajectory,
    private _host: IHost
  ) {
    this.node.hidden = true;
  }

  /** Show the banner while the run waits after a rewind. `live` is true while the run can be controlled. */
  update(live: boolean): void {
    const { readyAt, rewinds } = this._trajectory;
    const rewound = readyAt === null ? null : (rewinds[rewinds.length - 1] ?? null);
    const { controls, timeTravel } = this._host;
    const ways = [live && !!controls, !!timeTravel, !!timeTravel?.resume].join();
    if (rewound === this._shown && ways === this._drawn) {
      return;
    }
    this._shown = rewound;
    this._drawn = ways;
    this._busy = false;
    this._status.textContent = '';
    this._close();
    this.node.hidden = !rewound;
    this.node.replaceChildren(...(rewound ? this._draw(rewound, live) : []));
    this._bringWanted();
  }

  /** Scroll to the banner and give it the keyboard, now or when the record of the rewind has come. */
  bring(): void {
    this._wanted = true;
    this._bringWanted();
  }

  private _bringWanted(): void {
    const banner = this.node.firstElementChild as HTMLElement | null;
    if (this._wanted && banner) {
      this._wanted = false;
      this.node.scrollIntoView({ block: 'nearest' });
      banner.focus({ preventScroll: true });
    }
  }

  private _draw(rewound: IRewound, live: boolean): HTMLElement[] {
    const { trans, timeTravel, controls } = this._host;
    const buttons: HTMLElement[] = [];
    if (live && controls) {
      buttons.push(
        this._button(trans('Continue'), () => controls.resume(), true),
        this._opens('say', trans('Say and continue…'))
      );
    } else if (timeTravel?.resume) {
      buttons.push(
        this._button(trans('Continue'), () => timeTravel.resume!({}), true),
        this._opens('say', trans('Say and continue…'))
      );
      if (this._nextCall()?.arguments) {
        buttons.push(this._opens('edit', trans('Edit next call…')));
      }
    }
    if (timeTravel) {
      buttons.push(this._button(trans('Undo'), () => timeTravel.undo(false)));
    }
    const text = h('div', { class: 'lsn-banner-text' }, h('p', {}, this._sentence(rewound)), this._status);
    const label = trans('After the rewind');
    const banner = h('div', {
      class: 'lsn-banner',
      'data-kind': 'back',
      role: 'group',
      'aria-label': label,
      tabindex: -1
    });
    banner.append(text, ...buttons);
    return [banner, this._form];
  }

  /** Return for example "Steps 3 to 5 are kept as an earlier attempt. 1 file was restored." */
  private _sentence(rewound: IRewound): string {
    const { trans } = this._host;
    const first = (this._trajectory.readyAt ?? 0) + 1;
    const last = this._trajectory.stepAt(rewound.id);
    const kept =
      last > first
        ? trans('Steps %1 to %2 are kept as an earlier attempt.', first, last)
        : last === first
          ? trans('Step %1 is kept as an earlier attempt.', first)
          : '';
    const { restored } = rewound;
    const files =
      rewound.what === 'conversation'
        ? trans('The files stayed as they were.')
        : restored === 1
          ? trans('1 file was restored.')
          : restored
            ? trans('%1 files were restored.', restored)
            : '';
    return [kept, files].filter(part => part).join(' ');
  }

  /** Return the next call: one that waits, or the first call after this step in the newest earlier attempt. */
  private _nextCall(): ICall | null {
    const { steps, readyAt, branches } = this._trajectory;
    const waits = steps[steps.length - 1]?.calls.find(call => !call.result);
    if (waits) {
      return waits;
    }
    const left = branches.filter(branch => !branch.head && branch.step === readyAt && branch.steps > branch.step);
    const newest = left[left.length - 1];
    const step = newest && this._trajectory.at(newest.tip)?.steps.find(one => one.number === readyAt! + 1);
    return step?.calls[0] ?? null;
  }

  private _opens(which: 'say' | 'edit', label: string): HTMLButtonElement {
    const button = h('button', { type: 'button', 'aria-expanded': 'false' }, label);
    button.addEventListener('click', () => {
      const open = this._open !== which;
      this._close();
      if (open) {
        this._open = which;
        button.setAttribute('aria-expanded', 'true');
        this._form.replaceChildren(...(which === 'say' ? this._sayForm() : this._editForm()));
        this._form.hidden = false;
        this._form.querySelector('textarea')?.focus();
      }
    });
    return button;
  }

  private _close(): void {
    this._open = null;
    this._form.hidden = true;
    this._form.replaceChildren();
    this.node.querySelectorAll('[aria-expanded]').forEach(one => one.setAttribute('aria-expanded', 'false'));
  }

  private _sayForm(): HTMLElement[] {
    const { trans, controls, timeTravel } = this._host;
    const area = editArea('', trans('Message to the model'));
    area.placeholder = trans('The model reads it before its next reply');
    const send = this._button(trans('Say and continue'), async () => {
      const text = area.value.trim();
      if (timeTravel?.resume && !controls) {
        await timeTravel.resume({ say: text });
      } else {
        await controls!.say(text);
        await controls!.resume();
      }
    });
    send.disabled = true;
    area.addEventListener('input', () => {
      send.disabled = !area.value.trim();
    });
    return [area, send];
  }

  private _editForm(): HTMLElement[] {
    const { trans, timeTravel } = this._host;
    const call = this._nextCall()!;
    const editor = new ArgumentsEditor(call.arguments!, this._host, () => {
      run.disabled = !editor.edited;
    });
    const run = this._button(trans('Run the edited call and continue'), () => {
      return timeTravel!.resume!({ edit: editor.values });
    });
    run.disabled = true;
    return [
      h('div', { class: 'lsn-note' }, trans('The next call was:'), ' ', h('code', {}, plainText(call.tool))),
      editor.node,
      run
    ];
  }

  private _button(label: string, action: () => Promise<unknown>, primary = false): HTMLButtonElement {
    const button = makeButton(label, () => this._do(button, action), { class: primary && 'lsn-primary' });
    return button;
  }

  private async _do(button: HTMLButtonElement, action: () => Promise<unknown>): Promise<void> {
    if (this._busy) {
      return;
    }
    this._busy = true;
    button.disabled = true;
    this.node.setAttribute('aria-busy', 'true');
    this._status.textContent = this._host.trans('Working…');
    try {
      await action();
      await this._host.refresh?.();
      this._status.textContent = '';
    } catch (error) {
      this._status.textContent = errorText(error);
    }
    this._busy = false;
    button.disabled = false;
    this.node.removeAttribute('aria-busy');
  }
}

/** Requests of which only the newest counts: an answer that comes after a newer request is dropped. */
export class Newest {
  private _asked = 0;

  async ask<T>(answer: Promise<T>, show: (value: T) => void, fail: (error: unknown) => void): Promise<void> {
    const asked = ++this._asked;
    try {
      const value = await answer;
      if (asked === this._asked) {
        show(value);
      }
    } catch (error) {
      if (asked === this._asked) {
        fail(error);
      }
    }
  }
}

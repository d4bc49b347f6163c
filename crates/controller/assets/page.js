// Keeps a page up to date. After an event of the controller, the page is loaded again, and the
// elements that differ are replaced. The server makes all of the HTML.
"use strict";
(() => {
  const PACE = 250;        // the least time between two requests, in ms
  const CALM = 5000;       // after this time the page is loaded again even without an event
  const AGAIN = 10000;     // the pause before another attempt, if the controller refuses the stream
  const OUTPUT = 200000;   // the most characters of an instance's output that are kept
  const body = document.body;
  const live = document.getElementById("live");
  // The link that the controller prints has a token after its #, which no server is sent.
  function log_in() {
    const form = document.querySelector("form.login");
    if (!form || !location.hash) return;
    form.elements.token.value = location.hash.slice(1);
    history.replaceState(null, "", "/login");
    form.submit();
  }
  log_in();
  addEventListener("hashchange", log_in);
  if (!body.dataset.after) return;
  let after = body.dataset.after;
  let stream = null;
  let asking = null;
  let due = 0;             // the timer of the next request
  let last = 0;            // the time of the last answer, by a clock that does not jump
  let shown = location.href;
  let dirty = false;       // true if an event arrived after the last request
  let held = 0;            // the number of characters of output on the page
  let ended = "";          // the state of the instance when its output ended; null while it goes on

  const say = (state) => { body.dataset.live = state; };

  // Makes `old` equal to `fresh`, and keeps every element that is the same, so that focus, scroll
  // position and open details stay.
  function put(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    const isSame = old.nodeName === fresh.nodeName && old.nodeType === 1;
    if (!isSame) { old.replaceWith(document.adoptNode(fresh)); return; }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      // The reader opens and closes details, and a new row keeps its mark until the mark fades.
      const stays = (name === "open" && old.nodeName === "DETAILS") || name === "class";
      if (!fresh.hasAttribute(name) && !stays) old.removeAttribute(name);
    }
    // Text that is being typed stays, and so does the output, which the stream carries.
    if (old.nodeName === "INPUT" || old.id === "output") return;
    const known = new Map();
    for (const child of old.children) if (child.id) known.set(child.id, child);
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.id ? known.get(child.id) : at && !at.id && at.nodeName === child.nodeName ? at : null;
      if (same) {
        if (same === at) at = at.nextSibling; else old.insertBefore(same, at);
        const changed = child.nodeName === "TR" && state(same) !== state(child);
        put(same, child);
        if (changed) mark(same);
      } else {
        const added = old.insertBefore(document.adoptNode(child), at);
        // Rows of another page of the table are not new.
        if (/^(TR|LI)$/.test(added.nodeName) && added.id && shown === location.href) mark(added);
      }
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  }

  function state(row) {
    const state = row.querySelector(".state");
    return state && state.textContent;
  }

  function mark(row) {
    row.classList.add("new");
    row.addEventListener("animationend", () => row.classList.remove("new"), { once: true });
  }

  function refresh() {
    if (asking || document.hidden) return;
    dirty = false;
    asking = new XMLHttpRequest();
    asking.open("GET", location.href);
    asking.setRequestHeader("ssntp-followed", "1");
    asking.responseType = "document";
    asking.timeout = AGAIN;
    asking.onloadend = () => {
      const { response, responseURL } = asking;
      asking = null;
      last = performance.now();
      const fresh = response && response.getElementById("main");
      if (responseURL.endsWith("/login")) { location.reload(); return; }
      if (fresh && response.body.dataset.after) {
        put(document.getElementById("main"), fresh);
        shown = location.href;
        put(live, response.getElementById("live"));
        // An instance whose output had ended may run again.
        if (output() && ended !== null && ended !== state(document)) { stop(); follow(); }
      } else {
        say("late");
      }
      if (dirty) soon();
    };
    asking.send();
  }

  function soon() {
    dirty = true;
    if (due || asking) return;
    due = setTimeout(() => { due = 0; refresh(); }, Math.max(0, last + PACE - performance.now()));
  }

  function follow() {
    if (stream || document.hidden) return;
    const of = output() ? "&output=" + encodeURIComponent(output().dataset.of) : "";
    ended = of && null;
    stream = new EventSource("/api/v1/events?after=" + encodeURIComponent(after) + of);
    stream.onopen = () => say("live");
    stream.onmessage = (event) => { after = event.lastEventId || after; soon(); };
    stream.addEventListener("reload", () => location.reload());
    stream.addEventListener("begin", () => {
      if (output()) output().replaceChildren();
      held = 0;
    });
    stream.addEventListener("output", (event) => {
      const { out, err, end } = JSON.parse(event.data);
      if (end === undefined) { write(err === undefined ? "out" : "err", out || err || ""); return; }
      ended = state(document);
      if (end) write("end", "\nThe output ends: " + end);
    });
    stream.onerror = () => {
      say("late");
      // A browser does not retry a stream that was refused.
      if (stream && stream.readyState === EventSource.CLOSED) { stop(); setTimeout(follow, AGAIN); }
    };
  }

  const output = () => document.getElementById("output");

  // Appends text to the output, and drops the oldest text. If the end was visible, it stays visible.
  function write(kind, text) {
    const box = output();
    if (!box) return;
    const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
    let span = box.lastElementChild;
    if (!span || span.className !== kind) {
      span = document.createElement("span");
      span.className = kind;
      span.append("");
      box.append(span);
    }
    span.firstChild.appendData(text);
    held += text.length;
    while (held > OUTPUT) {
      const first = box.firstElementChild;
      const dropped = Math.min(held - OUTPUT, first.textContent.length);
      first.firstChild.deleteData(0, dropped);
      if (!first.textContent) first.remove();
      held -= dropped;
    }
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  function stop() {
    if (stream) stream.close();
    stream = null;
  }

  // A hidden tab sends no requests, and uses none of the streams.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { stop(); return; }
    follow();
    soon();
  });
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => { if (event.persisted) { follow(); soon(); } });
  setInterval(() => { if (performance.now() - last >= CALM) refresh(); }, CALM);

  // Filters while the user types. The address has the state of the table, as without a script.
  let typed = 0;
  document.addEventListener("input", (event) => {
    const form = event.target.closest("form[role=search]");
    if (!form) return;
    clearTimeout(typed);
    typed = setTimeout(() => {
      const query = new URLSearchParams(new FormData(form));
      if (!query.get("q")) query.delete("q");
      history.replaceState(null, "", location.pathname + (query.size ? "?" + query : ""));
      soon();
    }, 200);
  });

  // The key / moves the focus to the filter.
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName)) return;
    const field = document.getElementById("q");
    if (field) { event.preventDefault(); field.focus(); }
  });

  follow();
})();

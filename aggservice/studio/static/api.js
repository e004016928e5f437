// Requests to this studio only; a refusal becomes an Error with the studio's own sentence.

async function answer(response) {
  const body = await response.json().catch(() => ({ error: `the studio answered ${response.status}` }));
  if (!response.ok) throw new Error(body.error ?? `the studio answered ${response.status}`);
  return body;
}

export async function get(path, members = {}) {
  const query = new URLSearchParams(members).toString();
  return answer(await fetch(`/api/${path}${query ? `?${query}` : ""}`));
}

export async function post(path, members = {}) {
  const headers = { "content-type": "application/json", "x-aggservice-studio": "1" };
  return answer(await fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(members) }));
}

// Follow a feed until its last event, which has a state.
export function follow(feed, each) {
  return new Promise((resolve, reject) => {
    const source = new EventSource(`/api/feeds/${encodeURIComponent(feed)}`);
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      if (event.state === undefined) { each(event); return; }
      source.close();
      resolve(event);
    };
    source.onerror = () => { source.close(); reject(new Error("the stream ended: the studio stopped, or too many pages follow it")); };
  });
}

let shelf = null;

export async function items(kind, again = false) {
  if (shelf === null || again) shelf = await get("shelf");
  return shelf.items.filter((item) => item.kind === kind);
}

export const folders = async () => { await items("run"); return shelf.folders; };

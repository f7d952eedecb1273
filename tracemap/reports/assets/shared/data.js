// Data of the page from its `data` elements: compressed JSON, as that of a large model would dominate the size of the page.
async function inflated(base64) {
  const packed = atob(base64);
  const bytes = new Uint8Array(packed.length);
  for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
const parts = [...document.querySelectorAll("script.data")].map((part) => inflated(part.textContent));
const data = Object.assign({}, ...(await Promise.all(parts)));

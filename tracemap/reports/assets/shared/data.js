// What the page works on, as its `data` element has it.
const data = JSON.parse(byId("data").textContent);
const ops = new Map(data.ops.map((op) => [op.id, op]));

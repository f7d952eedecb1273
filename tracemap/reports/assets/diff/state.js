// Data of the other scripts: ops by anchor and by their ids before and after, and the selected metric.
data.ops = allUnpacked("DiffOp", data.ops);
data.remarks = allUnpacked("DiffRemark", data.remarks);
data.scopes = allUnpacked("DiffScope", data.scopes);
data.groups = allUnpacked("DiffGroup", data.groups);
const boxesOf = (group) => [group.before, group.after].map((boxes) => allUnpacked("DiffBox", boxes));
data.ops.forEach((op, row) => Object.assign(op, { row, key: op.after || "was-" + op.before, ids: [...new Set([op.before, op.after].filter(Boolean))].join(" → ") }));
data.remarks.forEach((remark, number) => (remark.number = number));
const opOfKey = new Map(data.ops.map((op) => [op.key, op]));
const opsOfSide = { A: new Map(data.ops.map((op) => [op.before, op])), B: new Map(data.ops.map((op) => [op.after, op])) };
const measured = data.metrics.length > 0;
let metric = data.metric; // -1 without metrics

const kernelNames = data.kernels.map(({ before, after }) => ({ A: before?.name ?? "", B: after?.name ?? "" }));
const kernelNumber = { A: new Map(), B: new Map() };
kernelNames.forEach((names, number) => ["A", "B"].forEach((side) => names[side] && kernelNumber[side].set(names[side], number)));

// The groups of ops, by the op's row.
const groupsOfOp = new Map();
data.groups.forEach((group, number) => {
  for (const box of boxesOf(group).flat()) for (const row of box.ops) groupsOfOp.set(row, (groupsOfOp.get(row) ?? new Set()).add(number));
});

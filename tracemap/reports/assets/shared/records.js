// Rows are lists of field values; the names of the fields are in the data once.
function unpacked(kind, values) {
  const row = {};
  const names = data.fields[kind];
  for (let at = 0; at < names.length; at++) row[names[at]] = values[at];
  return row;
}

const allUnpacked = (kind, rows) => rows.map((values) => unpacked(kind, values));

const isKnown = (value) => value !== null && value !== undefined;

// The requests of a page: for the DAG, run and transaction in its address.

export const asked = new URLSearchParams(location.search);
export const dagId = asked.get("dag_id") ?? "";

// What an answer says is wrong: a text, or the first flaw that was found in a value of the request.
export function saidIn(body) {
  const flaw = Array.isArray(body.detail) ? body.detail[0] : null;
  if (flaw) return `${flaw.loc?.at(-1)}: ${flaw.msg}`;
  return typeof body.detail === "string" ? body.detail : "";
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(`api/pipelines${path}${query ? `?${query}` : ""}`, { credentials: "same-origin" });
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const said = saidIn(body) || answer.statusText;
  if (answer.status === 401) throw new Error("you are not logged in; reload Airflow's page");
  if (answer.status === 403) throw new Error("you may not view this pipeline's DAG");
  throw Object.assign(new Error(said || `the server answered ${answer.status}`), { absent: answer.status === 404 });
}

export const here = (path = "", parameters = {}) => get(`/${encodeURIComponent(dagId)}${path}`, parameters);

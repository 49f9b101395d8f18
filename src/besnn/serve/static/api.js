// Requests to the service.

const KEY = "besnn-token";

export class TokenNeeded extends Error {}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const useToken = (token) => sessionStorage.setItem(KEY, token);

async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const token = sessionStorage.getItem(KEY);
  if (token) headers.set("Authorization", `Bearer ${token}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch {
    throw new Error("The service does not answer. Is it still running?");
  }
  if (response.ok) return response.json();
  const problem = await response.json().catch(() => ({ detail: response.statusText }));
  if (response.status === 401) throw new TokenNeeded("The service does not accept this token.");
  throw new Error(`The service refused: ${problem.detail}.`);
}

export const getModel = () => request("/v1/model");
export const getExamples = async () => (await request("/v1/examples")).examples;
export const getDrift = () => request("/v1/drift");

const predictPath = (members, observe) => `/v1/predict?members=${members}&observe=${observe}`;

export async function predict(inputs, { members = true, observe = true } = {}) {
  const body = JSON.stringify({ inputs });
  const headers = { "Content-Type": "application/json" };
  return (await request(predictPath(members, observe), { method: "POST", headers, body })).predictions;
}

// Explains one input, `{ input }` or `{ file }`.
export async function explain({ input, file }, heatMap) {
  const options = { method: "POST" };
  if (file) {
    options.body = new FormData();
    options.body.append("images", file, file.name || "pasted");
  } else {
    options.body = JSON.stringify({ inputs: [input] });
    options.headers = { "Content-Type": "application/json" };
  }
  return (await request(`/v1/explain?heat_map=${heatMap}`, options)).explanations[0];
}

export async function predictFiles(files, { observe = true } = {}) {
  const body = new FormData();
  for (const file of files) body.append("images", file, file.name || "pasted");
  return (await request(predictPath(true, observe), { method: "POST", body })).predictions;
}

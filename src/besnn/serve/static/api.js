// The service as the page uses it.

const KEY = "besnn-token";

export class TokenNeeded extends Error {}

export const hasToken = () => sessionStorage.getItem(KEY) !== null;
export const useToken = (token) => sessionStorage.setItem(KEY, token);

async function ask(path, options = {}) {
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
  if (response.status === 401) throw new TokenNeeded("That is not the token that the service expects.");
  throw new Error(`The service refused: ${problem.detail}.`);
}

export const getModel = () => ask("/v1/model");
export const getExamples = async () => (await ask("/v1/examples")).examples;
export const getDrift = () => ask("/v1/drift");

const predictPath = (members, observe) => `/v1/predict?members=${members}&observe=${observe}`;

export async function predict(inputs, { members = true, observe = true } = {}) {
  const body = JSON.stringify({ inputs });
  const headers = { "Content-Type": "application/json" };
  return (await ask(predictPath(members, observe), { method: "POST", headers, body })).predictions;
}

export async function predictFiles(files, { observe = true } = {}) {
  const body = new FormData();
  for (const file of files) body.append("images", file, file.name || "pasted");
  return (await ask(predictPath(true, observe), { method: "POST", body })).predictions;
}

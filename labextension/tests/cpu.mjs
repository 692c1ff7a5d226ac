/** Milliseconds that this process has worked. What else the machine does meanwhile is not in it. */
export function cpuTime() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}

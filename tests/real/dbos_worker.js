// A worker of DBOS, as an application has it: node dbos_worker.js URL EXECUTOR VERSION [RUN,RUN…]
// Runs in the folder in which the SDK is installed. Each RUN is enqueued onto the queue `flows`; one called `long…`
// sleeps for an hour, any other for two seconds. Prints `launched` when all of that is done.
const { createRequire } = require('node:module');
const { DBOS } = createRequire(`${process.cwd()}/`)('@dbos-inc/dbos-sdk');

const [, , url, executor, version, runs] = process.argv;

const flow = DBOS.registerWorkflow(
  async (ms) => {
    await DBOS.runStep(async () => 1, { name: 'fetch' });
    await DBOS.sleep(ms);
    return 'done';
  },
  { name: 'flow', maxRecoveryAttempts: 1 },
);

async function main() {
  DBOS.setConfig({
    name: 'flow',
    systemDatabaseUrl: url,
    executorID: executor,
    applicationVersion: version,
    runAdminServer: false,
    logLevel: 'error',
  });
  await DBOS.launch();
  await DBOS.registerQueue('flows', { concurrency: 10 });
  for (const run of (runs || '').split(',').filter(Boolean)) {
    await DBOS.startWorkflow(flow, { workflowID: run, queueName: 'flows' })(run.startsWith('long') ? 3600000 : 2000);
  }
  console.log('launched');
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});

// weft plan-worker: the process in which a broker plans a job. Nobody starts it by hand.

#include <memory>

#include "broker/service/plan_worker.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace weft::cli {

void add_plan_worker(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("plan-worker", "the process in which a broker plans a job");
  command.hide();  // not listed
  struct Options {
    broker::PlanWorkerOptions worker;
    int64_t memory = 0;
  };
  auto options = std::make_shared<Options>();
  command.option("--blobs", options->worker.blobs).required();
  command.option("--jobs", options->worker.jobs).required();
  command.option("--copy-rate", options->worker.copy_rate, "bytes a second");
  command.option("--memory", options->memory, "bytes");
  command.option("--parent", options->worker.parent, "the broker's process");
  command.runs(chosen, [options]() -> Result<int> {
    options->worker.memory_max = Bytes{options->memory};
    WEFT_TRY_STATUS(broker::run_plan_worker(options->worker));
    return kExitOk;
  });
}

}  // namespace weft::cli

// weft plan-worker: the process in which a broker plans a job. Nobody starts it by hand.
#include <CLI/App.hpp>

#include <memory>

#include "broker/service/plan_worker.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace weft::cli {

void add_plan_worker(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("plan-worker", "the process in which a broker plans a job");
  command->group("");  // not listed
  struct Options {
    broker::PlanWorkerOptions worker;
    int64_t memory = 0;
  };
  auto options = std::make_shared<Options>();
  command->add_option("--blobs", options->worker.blobs)->required();
  command->add_option("--jobs", options->worker.jobs)->required();
  command->add_option("--replication-rate", options->worker.replication_rate, "bytes a second");
  command->add_option("--memory", options->memory, "bytes");
  command->add_option("--parent", options->worker.parent, "the broker's process");
  command->callback([options, &chosen] {
    chosen = [options]() -> Result<int> {
      options->worker.memory_max = Bytes{options->memory};
      WEFT_TRY_STATUS(broker::run_plan_worker(options->worker));
      return kExitOk;
    };
  });
}

}  // namespace weft::cli

// The subcommands of `weft`: each adds its options to the command line and says what to run.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "peer/backend/backend.h"

namespace CLI {
class App;
}

namespace weft::cli {

// What the chosen subcommand does; returns an exit code. Errors are printed by main.
using Command = std::function<Result<int>()>;

void add_local(CLI::App& app, Command& chosen);
void add_inspect(CLI::App& app, Command& chosen);
void add_conformance(CLI::App& app, Command& chosen);
void add_gradcheck(CLI::App& app, Command& chosen);
void add_profile(CLI::App& app, Command& chosen);
void add_generate(CLI::App& app, Command& chosen);
void add_predict(CLI::App& app, Command& chosen);
void add_ops(CLI::App& app, Command& chosen);
void add_plan(CLI::App& app, Command& chosen);
void add_plan_worker(CLI::App& app, Command& chosen);
void add_broker(CLI::App& app, Command& chosen);
void add_token(CLI::App& app, Command& chosen);
void add_join(CLI::App& app, Command& chosen);
void add_pause(CLI::App& app, Command& chosen);
void add_submit(CLI::App& app, Command& chosen);
// jobs, status, logs, stop, fetch, peers, login
void add_job_commands(CLI::App& app, Command& chosen);

// Options that several commands share.
struct BackendOptions {
  std::string name = "cpu";
  int threads = 0;  // 0: all that this process may use
  void add_to(CLI::App& command);
};
Result<std::unique_ptr<peer::Backend>> make_backend(const BackendOptions& options);
// Which GPU "cuda" or "cuda:N" names; nothing: the text names none. And its backend, from the module.
std::optional<int> parse_cuda(std::string_view text);
Result<std::unique_ptr<peer::Backend>> make_cuda(int device);

// "--size name=number" options to sizes of symbolic dims.
Result<std::map<std::string, int64_t>> parse_sizes(const std::vector<std::string>& texts);

}  // namespace weft::cli

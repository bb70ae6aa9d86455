// The subcommands of `weft`: each adds its options to the command line and says what to run.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command_line.h"
#include "peer/backend/backend.h"

namespace weft::cli {

void add_local(CommandLine program, Command& chosen);
void add_inspect(CommandLine program, Command& chosen);
void add_conformance(CommandLine program, Command& chosen);
void add_gradcheck(CommandLine program, Command& chosen);
void add_profile(CommandLine program, Command& chosen);
void add_generate(CommandLine program, Command& chosen);
void add_serve(CommandLine program, Command& chosen);
void add_chat(CommandLine program, Command& chosen);
void add_predict(CommandLine program, Command& chosen);
void add_merge(CommandLine program, Command& chosen);
void add_ops(CommandLine program, Command& chosen);
void add_plan(CommandLine program, Command& chosen);
void add_plan_worker(CommandLine program, Command& chosen);
void add_broker(CommandLine program, Command& chosen);
void add_broker_gc(CommandLine broker, Command& chosen);  // weft broker gc
void add_token(CommandLine program, Command& chosen);
void add_join(CommandLine program, Command& chosen);
void add_pause(CommandLine program, Command& chosen);
void add_doctor(CommandLine program, Command& chosen);
void add_peer(CommandLine program, Command& chosen);
void add_service(CommandLine program, Command& chosen);
void add_submit(CommandLine program, Command& chosen);
void add_ui(CommandLine program, Command& chosen);
// jobs, status, logs, stop, fetch, peers, login
// jobs, status, logs, stop, fetch, peers, login
void add_help(CommandLine program, Command& chosen);
void add_login(CommandLine program, Command& chosen);
void add_job_commands(CommandLine program, Command& chosen);
// reference, hidden: prints what all commands take, for people and shells
void add_reference(CommandLine program, Command& chosen);

// Options that several commands share.
struct BackendOptions {
  std::string name = "cpu";
  int threads = 0;  // 0: all that this process may use
  void add_to(CommandLine command);
};
Result<std::unique_ptr<peer::Backend>> make_backend(const BackendOptions& options);
// Which GPU "cuda" or "cuda:N" names; nothing: the text names none. And its backend, from the module.
std::optional<int> parse_cuda(std::string_view text);
Result<std::unique_ptr<peer::Backend>> make_cuda(int device);

// "--size name=number" options to sizes of symbolic dims.
Result<std::map<std::string, int64_t>> parse_sizes(const std::vector<std::string>& texts);

}  // namespace weft::cli

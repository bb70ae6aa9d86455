// weft: one program, a subcommand for each thing that people do with it.
#include <fcntl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

#include "cli/commands.h"
#include "cli/exit_codes.h"

namespace {

int run(int argc, char** argv) {
  using namespace weft::cli;
  CLI::App app{"weft trains one neural network, given as an ONNX file, on real data"};
  app.require_subcommand(1);
  app.set_version_flag("--version", "weft " WEFT_VERSION);
  Command chosen;
  add_local(app, chosen);
  add_inspect(app, chosen);
  add_profile(app, chosen);
  add_gradcheck(app, chosen);
  add_conformance(app, chosen);
  add_predict(app, chosen);
  add_generate(app, chosen);
  add_ops(app, chosen);
  add_plan(app, chosen);
  add_plan_worker(app, chosen);
  add_broker(app, chosen);
  add_token(app, chosen);
  add_join(app, chosen);
  add_pause(app, chosen);
  add_submit(app, chosen);
  add_job_commands(app, chosen);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitOk : kExitUsage;
  }
  return end_with(chosen());
}

// Whoever starts a process with a closed standard output would have the next file that is opened take its
// number, and what is printed would be written into that.
void open_standard_streams() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDWR);  // the lowest number that is free
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_streams();
  // A reader that goes, or a file that may not grow, is told by the write that fails: neither ends a run.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const std::system_error& error) {
    if (error.code().value() == EPIPE) return weft::cli::kExitOk;  // the reader has what it wanted
    std::fprintf(stderr, "weft: error: %s\n", error.what());
    return weft::cli::kExitFailed;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "weft: error: out of memory: try a smaller microbatch_size\n");
    return weft::cli::kExitResources;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "weft: internal error: %s\n", error.what());
    return weft::cli::kExitFailed;
  }
}

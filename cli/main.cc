// weft: one program, a subcommand for each thing that people do with it.
#include <fcntl.h>
#include <unistd.h>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <system_error>

#include "cli/commands.h"
#include "cli/commit.h"
#include "cli/exit_codes.h"
#include "cli/job_keys.h"

namespace {

// `--help` lists commands by who uses them.
void group(const weft::cli::CommandLine& line) {
  line.group("On this machine", {"help", "local", "inspect", "profile", "predict", "merge", "generate",
                                 "serve", "chat", "plan"});
  line.group("Jobs on a broker",
             {"login", "submit", "jobs", "status", "logs", "stop", "resume", "fetch", "rm", "ui", "logout"});
  line.group("Offering this machine", {"join", "pause", "peer", "service", "doctor"});
  line.group("Running a broker", {"broker", "token", "peers"});
  line.group("Working on weft", {"gradcheck", "conformance", "ops"});
}

// Who types the name alone wants to know what there is: the three ways in, before a list of all.
int introduce() {
  std::fputs(
      "weft trains and serves one neural network, given as an ONNX file, on many people's machines.\n\n"
      "  weft local JOB          train a job on this machine alone\n"
      "  weft submit JOB         train it on the machines of a broker; `weft login` first\n"
      "  weft join HOST:PORT     offer this machine to a broker\n"
      "  weft broker             run the service at which jobs and machines meet\n"
      "  weft chat               talk with a model that is served\n\n"
      "weft --help lists every command; weft help COMMAND shows what one takes, weft help KEY a key of the\n"
      "job file.\n",
      stderr);
  return weft::cli::kExitUsage;
}

int run(int argc, char** argv) {
  using namespace weft::cli;
  if (argc <= 1) return introduce();
  Program program("weft trains one neural network, given as an ONNX file, on real data",
                  std::string("weft " WEFT_VERSION " (") + kCommit + ")");
  const CommandLine line = program.line();
  line.needs_subcommand();
  Command chosen;
  add_local(line, chosen);
  add_inspect(line, chosen);
  add_profile(line, chosen);
  add_predict(line, chosen);
  add_merge(line, chosen);
  add_generate(line, chosen);
  add_serve(line, chosen);
  add_chat(line, chosen);
  add_plan(line, chosen);
  add_submit(line, chosen);
  add_help(line, chosen);
  add_login(line, chosen);
  add_job_commands(line, chosen);
  add_ui(line, chosen);
  add_join(line, chosen);
  add_pause(line, chosen);
  add_doctor(line, chosen);
  add_peer(line, chosen);
  add_service(line, chosen);
  add_broker(line, chosen);
  add_token(line, chosen);
  add_gradcheck(line, chosen);
  add_conformance(line, chosen);
  add_ops(line, chosen);
  add_job_keys(line, chosen);
  add_plan_worker(line, chosen);
  add_reference(line, chosen);
  group(line);
  if (const auto exit = program.parse(argc, argv)) return *exit;
  return end_with(chosen(), program.says_json());
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

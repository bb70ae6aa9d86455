#include "cli/commands.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"

namespace weft::cli {

void BackendOptions::add_to(CLI::App& command) {
  command
      .add_option("--backend", name,
                  "cpu (oneDNN and vectorised loops) or reference (double throughout, slow)")
      ->check(CLI::IsMember({"cpu", "reference"}))
      ->capture_default_str();
  command.add_option("--threads", threads, "compute threads; 0: all processors that this process may use")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
}

Result<std::unique_ptr<peer::Backend>> make_backend(const BackendOptions& options) {
  if (options.name == "reference") return peer::make_reference_backend();
  return peer::make_cpu_backend({.threads = options.threads, .pin = true});
}

}  // namespace weft::cli

#include <charconv>

#include "cli/commands.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/modules/modules.h"

namespace weft::cli {
namespace {

std::string refuse_name(const std::string& name) {
  if (name == "cpu" || name == "reference" || parse_cuda(name)) return {};
  return "there are cpu, reference, cuda and cuda:N, not '" + name + "'";
}

}  // namespace

std::optional<int> parse_cuda(std::string_view text) {
  constexpr int kDevicesMax = 1024;
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return std::nullopt;
  text.remove_prefix(5);
  int device = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), device);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() || device < 0 ||
      device >= kDevicesMax)
    return std::nullopt;
  return device;
}

Result<std::unique_ptr<peer::Backend>> make_cuda(int device) {
  WEFT_TRY(const peer::BackendModule* module, peer::open_module("cuda"));
  return module->make({.device = device});
}

void BackendOptions::add_to(CommandLine command) {
  command
      .option("--backend", name,
              "cpu (oneDNN and vectorised loops), cuda or cuda:N (an NVIDIA GPU, the Nth from 0), or "
              "reference (double throughout, slow)")
      .checked_by(refuse_name)
      .shows_default();
  command.option("--threads", threads, "compute threads; 0: all processors that this process may use")
      .within(0, 1024)
      .shows_default();
}

Result<std::unique_ptr<peer::Backend>> make_backend(const BackendOptions& options) {
  if (options.name == "reference") return peer::make_reference_backend();
  if (const auto device = parse_cuda(options.name)) return make_cuda(*device);
  return peer::make_cpu_backend({.threads = options.threads, .pin = true});
}

}  // namespace weft::cli

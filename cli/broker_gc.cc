// weft broker gc: what ended jobs left goes, of a broker that does not run; or what would go is said.
#include <fmt/format.h>

#include "broker/service/ended_jobs.h"
#include "broker/service/wall_clock.h"
#include "cli/broker_address.h"
#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/quantities.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;

struct GcOptions {
  std::string data_dir, keep = "7d", format = "text";
  bool dry_run = false;
};

std::string numbers_of(const std::vector<proto::JobNumber>& jobs) {
  constexpr size_t kShown = 12;
  std::string text;
  for (size_t i = 0; i < std::min(jobs.size(), kShown); ++i)
    text += fmt::format("{}{}", i > 0 ? ", " : "", jobs[i]);
  return jobs.size() > kShown ? fmt::format("{} and {} more", text, jobs.size() - kShown) : text;
}

Result<int> run_gc(const GcOptions& options) {
  WEFT_TRY(const Duration keep, parse_duration(options.keep));
  fs::path folder = options.data_dir;
  if (folder.empty()) {
    WEFT_TRY(folder, data_folder());
    folder /= "broker";
  }
  WEFT_TRY(const broker::Collected collected, broker::collect_ended(folder, keep, options.dry_run));
  if (options.format == "json") {
    print_event(fmt::format(R"({{"event":"gc","dry_run":{},"jobs":[{}],"bytes":{},"bytes_left":{}}})",
                            options.dry_run, fmt::join(collected.jobs, ","), collected.freed.value,
                            collected.left.value));
    return kExitOk;
  }
  const std::string before =
      format_time(broker::unix_ms() - std::chrono::duration_cast<std::chrono::milliseconds>(keep).count());
  if (collected.jobs.empty())
    fmt::print("no job ended before {}\n", before);
  else
    fmt::print("{} {} that ended before {}: {}\n", options.dry_run ? "would forget" : "forgot",
               collected.jobs.size() == 1 ? "the job" : fmt::format("{} jobs", collected.jobs.size()), before,
               numbers_of(collected.jobs));
  fmt::print("{} {} of blobs, {} stay\n", options.dry_run ? "would free" : "freed",
             format_bytes(collected.freed.value), format_bytes(collected.left.value));
  return kExitOk;
}

}  // namespace

void add_broker_gc(CommandLine broker, Command& chosen) {
  CommandLine command = broker.subcommand(
      "gc", "forget jobs that ended long ago, and free what they left, of a broker that does not run");
  auto options = std::make_shared<GcOptions>();
  command.option("--data-dir", options->data_dir, "the broker's data; default ~/.local/share/weft/broker");
  command.option("--keep", options->keep, "jobs that ended within this time stay").shows_default();
  command.flag("--dry-run", options->dry_run, "only say what would go; beside a broker that runs, too");
  command.format(options->format);
  command.runs(chosen, [options] { return run_gc(*options); });
}

}  // namespace weft::cli

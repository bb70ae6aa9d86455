#include "cli/heard_options.h"

#include "cli/curves.h"
#include "cli/notify.h"

namespace weft::cli {

void HeardOptions::add_to(CommandLine command) {
  command.option("--tensorboard", tensorboard, "a folder for TensorBoard's event files of this run");
  command.option(
      "--notify", notify,
      "a command for the shell when the job waits, is finished, was stopped or has failed: it gets "
      "WEFT_TEXT, WEFT_STATE, WEFT_JOB and WEFT_REASON");
}

std::vector<std::unique_ptr<Listener>> HeardOptions::listeners(const std::filesystem::path& curves,
                                                               const std::string& name) const {
  std::vector<std::unique_ptr<Listener>> all;
  if (!curves.empty()) all.push_back(make_curves(curves));
  if (!tensorboard.empty()) all.push_back(make_event_file(tensorboard));
  if (!notify.empty()) all.push_back(make_notifier(notify, name));
  return all;
}

}  // namespace weft::cli

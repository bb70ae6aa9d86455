// weft pause: tells one's own `weft join` processes on this machine to leave off for a while, or to go on.
// weft peer status: what they do, and why they do not work.
#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/json_event.h"
#include "cli/peer_control.h"
#include "cli/quantities.h"
#include "cli/report.h"

namespace weft::cli {
namespace {

struct PauseOptions {
  std::string length;
  std::string format = "text";
  bool off = false, status = false;
};

Result<ControlRequest> request_of(const PauseOptions& options) {
  if (options.off || options.status) {
    if (!options.length.empty() || (options.off && options.status))
      return fail(ErrorCode::InvalidArgument, "say a time, --off or --status, and only one of them");
    return ControlRequest{.kind = options.off ? ControlRequest::Kind::Resume : ControlRequest::Kind::Status};
  }
  ControlRequest request{.kind = ControlRequest::Kind::Pause};
  if (!options.length.empty()) {
    WEFT_TRY(request.length, parse_duration(options.length));
  }
  return request;
}

// Peers of one machine may have one name: then the process tells them apart.
std::string shown_name(const ControlAnswer& answer, const std::vector<ControlAnswer>& all) {
  const auto with_name = std::count_if(all.begin(), all.end(),
                                       [&](const ControlAnswer& other) { return other.name == answer.name; });
  return with_name == 1 ? answer.name : fmt::format("{} ({})", answer.name, answer.process);
}

Result<int> run_pause(const PauseOptions& options) {
  WEFT_TRY(const ControlRequest request, request_of(options));
  const std::vector<ControlAnswer> answers = ask_peers(control_folders(), request);
  if (answers.empty()) return fail(ErrorCode::NotFound, "no `weft join` of this user runs on this machine");
  bool all = true;
  for (const ControlAnswer& answer : answers) {
    all = all && answer.said;
    const std::string& said = answer.said ? *answer.said : answer.said.error().message;
    if (options.format == "json")
      print_event(
          fmt::format(R"({{"event":"peer","name":{},"process":{},"reached":{},"works":{},"says":{}}})",
                      json_string(answer.name), json_string(answer.process), answer.said.has_value(),
                      answer.said && said.starts_with("at work"), json_string(said)));
    else
      fmt::print("{}: {}\n", shown_name(answer, answers), said);
  }
  return all ? kExitOk : kExitFailed;
}

}  // namespace

void add_pause(CommandLine program, Command& chosen) {
  CommandLine command =
      program.subcommand("pause", "let the peers of yours on this machine leave off for a while");
  auto options = std::make_shared<PauseOptions>();
  command.option("length", options->length, "for how long, as 2h; default: until --off");
  command.flag("--off", options->off, "they go on, within their hours");
  command.flag("--status", options->status, "only say what they do");
  command.format(options->format);
  command.runs(chosen, [options] { return run_pause(*options); });
}

void add_peer(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("peer", "the peers of yours on this machine");
  command.needs_subcommand();
  CommandLine status = command.subcommand(
      "status", "what each of them does, and why it does not work: \"paused: on battery\"");
  auto options = std::make_shared<PauseOptions>(PauseOptions{.length = {}, .status = true});
  status.format(options->format);
  status.runs(chosen, [options] { return run_pause(*options); });
}

}  // namespace weft::cli

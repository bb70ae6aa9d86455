// weft help: a command, or a key of the job file, explained where one works.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/exit_codes.h"
#include "cli/job_keys.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "cli/suggestions.h"
#include "configs/job_keys.h"

namespace weft::cli {
namespace {

struct HelpOptions {
  std::vector<std::string> words;
  std::string format = "text";
};

std::string joined_by(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

std::string_view last_part(std::string_view path) { return path.substr(path.rfind('.') + 1); }

// The keys that are meant: of that path; else those that lie beneath it, or end with it.
std::vector<const configs::JobKey*> keys_of(const std::string& word) {
  std::vector<const configs::JobKey*> exact, near;
  for (const configs::JobKeySection& section : configs::job_key_sections())
    for (const configs::JobKey& key : section.keys) {
      if (key.path == word) exact.push_back(&key);
      if (key.path.starts_with(word + ".") || last_part(key.path) == word) near.push_back(&key);
    }
  return exact.empty() ? near : exact;
}

// What a person may have meant among keys; a path that many share is named once.
std::vector<std::string> key_names() {
  std::vector<std::string> names;
  for (const configs::JobKeySection& section : configs::job_key_sections())
    for (const configs::JobKey& key : section.keys) names.emplace_back(key.path);
  return names;
}

Result<std::string> text_of(const std::string& word, const std::vector<const configs::JobKey*>& keys) {
  static constexpr size_t kExplained = 3;
  std::string text;
  if (keys.size() > kExplained) {
    text = "keys of the job file; `weft help KEY` explains one:\n";
    for (const configs::JobKey* key : keys) text += fmt::format("  {}\n", key->path);
    return text;
  }
  for (const configs::JobKey* key : keys) {
    WEFT_TRY(const std::string one, explain_job_key(*key));
    text += one;
  }
  if (keys.size() == 1 && keys.front()->path == word)
    for (const std::string& name : key_names())
      if (name.starts_with(word + ".")) text += "beneath it: " + name + "\n";
  return text;
}

Result<std::string> explain(const CommandLine& program, const std::vector<std::string>& words) {
  if (words.empty())
    return program.help_of({}).value_or("") +
           "\nweft help COMMAND shows what a command takes, weft help KEY a key of the job file.\n";
  if (auto help = program.help_of(words)) return *help;
  const std::string word = joined_by(words, ".");
  if (const auto keys = keys_of(word); !keys.empty()) return text_of(word, keys);
  std::vector<std::string> near = nearest(word, key_names());
  for (const std::string& name : nearest(word, program.names())) near.push_back(name);
  return fail(ErrorCode::NotFound,
              fmt::format("'{}' is neither a command nor a key of the job file{}", word.substr(0, 128),
                          near.empty() ? "; docs/JOB.md lists those keys, weft --help the commands"
                                       : "; did you mean " + joined_by(near, " or ") + "?"));
}

Result<int> run_help(const CommandLine& program, const HelpOptions& options) {
  WEFT_TRY(const std::string text, explain(program, options.words));
  if (options.format == "json")
    print_event(fmt::format(R"({{"event":"help","text":{}}})", json_string(text)));
  else
    fmt::print("{}", text);
  return kExitOk;
}

}  // namespace

void add_help(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("help", "explain a command, or a key of the job file");
  auto options = std::make_shared<HelpOptions>();
  command.option("word", options->words, "a command, as submit, or a key, as optimizer.betas");
  command.format(options->format);
  command.runs(chosen, [program, options] { return run_help(program, *options); });
}

}  // namespace weft::cli

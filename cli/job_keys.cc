#include "cli/job_keys.h"

#include <cstdio>
#include <string>

#include "cli/exit_codes.h"
#include "cli/markdown.h"
#include "configs/job_keys.h"

namespace weft::cli {
namespace {

std::string default_of(const configs::JobKey& key) {
  if (!key.otherwise_words.empty()) return "Default: " + std::string(key.otherwise_words) + ".";
  if (!key.otherwise.empty()) return "Default: `" + std::string(key.otherwise) + "`.";
  return "Required.";
}

std::string entry_of(const configs::JobKey& key, std::string takes) {
  if (!key.takes.empty()) takes = key.takes;
  std::string text = "### `" + std::string(key.path) + "`\n\n" + wrapped_paragraph(key.meaning);
  std::string facts = takes.empty() ? "" : "Takes " + takes + ". ";
  text += wrapped_paragraph(facts + default_of(key)) + "\n```yaml\n" + std::string(key.example) + "\n```\n\n";
  return text;
}

}  // namespace

Result<std::string> explain_job_key(const configs::JobKey& key) {
  WEFT_TRY(const configs::AskedKeys asked, configs::asked_by_examples());
  const auto takes = asked.takes.find(key.path);
  return entry_of(key, takes == asked.takes.end() ? "" : takes->second).substr(4);  // without "### "
}

namespace {

Result<int> print_job_keys() {
  WEFT_TRY(const configs::AskedKeys asked, configs::asked_by_examples());
  std::string text =
      "# The job file\n\n" +
      wrapped_paragraph(
          "A job file is YAML. This page is made from weft's own reader by `./dev docs`: the reader says "
          "which keys there are and which values each takes. An unknown key is an error, and weft then names "
          "the nearest key. `--set a.b=value` overrides a key on the command line, with paths relative to "
          "the current folder, and `--set a.b=null` "
          "takes "
          "it away.") +
      "\n";
  for (const configs::JobKeySection& section : configs::job_key_sections()) {
    text += "## " + std::string(section.title) + "\n\n";
    if (!section.about.empty()) text += wrapped_paragraph(section.about) + "\n";
    for (const configs::JobKey& key : section.keys) {
      const auto takes = asked.takes.find(key.path);
      text += entry_of(key, takes == asked.takes.end() ? "" : takes->second);
    }
  }
  text.pop_back();  // no empty line at the end
  std::fputs(text.c_str(), stdout);
  return kExitOk;
}

}  // namespace

void add_job_keys(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("job-keys", "explain every key of the job file, as Markdown");
  command.hide();  // people read docs/JOB.md
  command.runs(chosen, print_job_keys);
}

}  // namespace weft::cli

// What `weft` takes on its command line: subcommands, options, flags. The library that reads it, CLI11, is
// seen by command_line.cc alone: a file that includes it compiles three seconds longer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command_words.h"

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11's own
class App;
class Option;
}  // namespace CLI

namespace weft::cli {

// What the chosen subcommand does; returns an exit code. Errors are printed by main.
using Command = std::function<Result<int>()>;

// One option, or a positional argument. A handle: it is valid as long as its Program.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required();
  Option one_of(std::vector<std::string> names);
  Option within(int low, int high);
  Option within(uint32_t low, uint32_t high);
  Option within(double low, double high);
  // `error` returns what is wrong with a text; empty: nothing.
  Option checked_by(std::function<std::string(const std::string& text)> error);
  // The help shows what its variable holds now.
  Option shows_default();
  // Of a list: each value follows the option's name again.
  Option one_value_each();
  Option excludes(Option other);

 private:
  CLI::Option* option_;
};

// The program's own options, or those of a subcommand. A handle, as above. Variables are written when the
// command line is read, and have to live until then.
class CommandLine {
 public:
  explicit CommandLine(CLI::App* app) : app_(app) {}
  CommandLine subcommand(const std::string& name, const std::string& what) const;
  // `name`: "-o,--output", or "output" for a positional argument.
  Option option(const std::string& name, std::string& value, const std::string& what = {}) const;
  Option option(const std::string& name, std::vector<std::string>& values,
                const std::string& what = {}) const;
  Option option(const std::string& name, std::filesystem::path& value, const std::string& what = {}) const;
  Option option(const std::string& name, int32_t& value, const std::string& what = {}) const;
  Option option(const std::string& name, uint32_t& value, const std::string& what = {}) const;
  Option option(const std::string& name, int64_t& value, const std::string& what = {}) const;
  Option option(const std::string& name, uint64_t& value, const std::string& what = {}) const;
  Option option(const std::string& name, std::optional<uint64_t>& value, const std::string& what = {}) const;
  Option option(const std::string& name, double& value, const std::string& what = {}) const;
  Option flag(const std::string& name, bool& value, const std::string& what = {}) const;

  // --format text|json. Of a command that was given it, Program::says_json() tells.
  Option format(std::string& value) const;

  void hide() const;              // `--help` does not list it
  void needs_subcommand() const;  // exactly one
  // `--help` lists these subcommands under a heading of their own. REQUIRES: they were added.
  void group(const std::string& heading, const std::vector<std::string>& names) const;
  // What `chosen` is where this subcommand is given, and none of its own.
  void runs(Command& chosen, Command command) const;
  // The help of a subcommand by its path, as {"token", "create"}; of this one where it is empty. Nothing:
  // there is none.
  std::optional<std::string> help_of(const std::vector<std::string>& path) const;
  std::vector<std::string> names() const;  // of its subcommands that help lists
  // All that was defined so far, hidden subcommands left out. REQUIRES: no value of a listed command was
  // read.
  CommandWords words() const;

 private:
  CLI::App* app_;
};

// A whole command line.
class Program {
 public:
  // `version` empty: no --version.
  explicit Program(const std::string& what, const std::string& version = {});
  ~Program();
  CommandLine line();
  // Nothing: go on with what was chosen. Else the exit code to leave with; help and errors are printed.
  std::optional<int> parse(int argc, char** argv);
  // The command that was chosen got --format json.
  bool says_json() const;
  // Throws std::invalid_argument: for tests.
  void parse(const std::vector<std::string>& arguments);

 private:
  std::unique_ptr<CLI::App> app_;
};

}  // namespace weft::cli

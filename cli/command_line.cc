#include "cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <stdexcept>
#include <string_view>

#include "cli/exit_codes.h"
#include "cli/suggestions.h"

namespace weft::cli {

Option Option::required() {
  option_->required();
  return *this;
}
Option Option::one_of(std::vector<std::string> names) {
  option_->check(CLI::IsMember(std::move(names)));
  return *this;
}
Option Option::within(int low, int high) {
  option_->check(CLI::Range(low, high));
  return *this;
}
Option Option::within(uint32_t low, uint32_t high) {
  option_->check(CLI::Range(low, high));
  return *this;
}
Option Option::within(double low, double high) {
  option_->check(CLI::Range(low, high));
  return *this;
}
Option Option::checked_by(std::function<std::string(const std::string& text)> error) {
  option_->check(std::move(error));
  return *this;
}
Option Option::shows_default() {
  option_->capture_default_str();
  return *this;
}
Option Option::one_value_each() {
  option_->allow_extra_args(false);
  return *this;
}
Option Option::excludes(Option other) {
  option_->excludes(other.option_);
  return *this;
}

CommandLine CommandLine::subcommand(const std::string& name, const std::string& what) const {
  return CommandLine(app_->add_subcommand(name, what));
}
Option CommandLine::option(const std::string& name, std::string& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, std::vector<std::string>& values,
                           const std::string& what) const {
  return Option(app_->add_option(name, values, what));
}
Option CommandLine::option(const std::string& name, std::filesystem::path& value,
                           const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, int32_t& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, uint32_t& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, int64_t& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, uint64_t& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, std::optional<uint64_t>& value,
                           const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::option(const std::string& name, double& value, const std::string& what) const {
  return Option(app_->add_option(name, value, what));
}
Option CommandLine::flag(const std::string& name, bool& value, const std::string& what) const {
  return Option(app_->add_flag(name, value, what));
}

Option CommandLine::format(std::string& value) const {
  return option("--format", value, "text, or json: one event a line")
      .one_of({"text", "json"})
      .shows_default();
}

void CommandLine::hide() const { app_->group(""); }
void CommandLine::needs_subcommand() const { app_->require_subcommand(1); }
void CommandLine::runs(Command& chosen, Command command) const {
  // Called after those of the subcommand's own subcommands, which then have been given.
  app_->callback([app = app_, &chosen, command = std::move(command)] {
    if (app->get_subcommands().empty()) chosen = command;
  });
}

void CommandLine::group(const std::string& heading, const std::vector<std::string>& names) const {
  for (const std::string& name : names) app_->get_subcommand(name)->group(heading);
}

namespace {

// The library writes the kind of a value and its choices as one text: "TEXT:{text,json}".
std::vector<std::string> choices_in(const std::string& type) {
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos) return {};
  return CLI::detail::split(type.substr(open + 1, close - open - 1), ',');
}

std::string placeholder(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (option.get_expected_max() == 0) return "";  // a flag
  if (type.starts_with("UINT") || type.starts_with("INT")) return "N";
  return type.starts_with("FLOAT") ? "X" : "TEXT";
}

OptionWords words_of(CLI::Option& option) {
  OptionWords words;
  words.positional = option.get_positional();
  if (words.positional) words.names.push_back(option.get_name(true));
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  words.value = placeholder(option);
  words.choices = choices_in(option.get_type_name());
  words.what = option.get_description();
  words.required = option.get_required();
  words.initial = option.get_default_str();  // only of those that show it
  return words;
}

CommandWords words_of(CLI::App& app) {
  CommandWords words{app.get_name(), app.get_description(), app.get_group(), {}, {}};
  for (CLI::Option* option : app.get_options()) words.options.push_back(words_of(*option));
  for (CLI::App* sub : app.get_subcommands(nullptr))
    if (!sub->get_group().empty()) words.commands.push_back(words_of(*sub));
  return words;
}

}  // namespace

CommandWords CommandLine::words() const { return words_of(*app_); }

std::optional<std::string> CommandLine::help_of(const std::vector<std::string>& path) const {
  const CLI::App* app = app_;
  for (const std::string& name : path) {
    const auto found = app->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == name; });
    if (found.empty()) return std::nullopt;
    app = found.front();
  }
  return app->help();
}

Program::Program(const std::string& what, const std::string& version)
    : app_(std::make_unique<CLI::App>(what)) {
  if (!version.empty()) app_->set_version_flag("--version", version);
}
Program::~Program() = default;
CommandLine Program::line() { return CommandLine(app_.get()); }

namespace {

const CLI::App& innermost(const CLI::App& program) {
  const CLI::App* app = &program;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

std::vector<std::string> shown_subcommands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* sub :
       app.get_subcommands([](const CLI::App* any) { return !any->get_group().empty(); }))
    names.push_back(sub->get_name());
  return names;
}
std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

std::vector<std::string> CommandLine::names() const { return shown_subcommands(*app_); }

namespace {

// The command as it is typed: "weft token create".
std::string typed(const CLI::App& app) {
  return app.get_parent() == nullptr ? "weft" : typed(*app.get_parent()) + " " + app.get_name();
}

// What is wrong with a word that the library does not know, and what may have been meant; nothing where the
// library says it as well.
std::optional<std::string> about_stranger(const CLI::App& app) {
  const std::vector<std::string> others = app.remaining();
  if (others.empty()) return std::nullopt;
  const std::string word = others.front().substr(0, 128);
  if (word.starts_with('-')) {
    const std::vector<std::string> near = nearest(word.substr(0, word.find('=')), long_options(app));
    return fmt::format("{} has no option '{}'; {}", typed(app), word,
                       near.empty() ? typed(app) + " --help lists those that it has"
                                    : fmt::format("did you mean {}?", fmt::join(near, " or ")));
  }
  const std::vector<std::string> commands = shown_subcommands(app);
  if (commands.empty())
    return fmt::format("{} takes no '{}': {} --help shows what it takes", typed(app), word, typed(app));
  std::string advice = app.get_parent() == nullptr ? advice_on_command(word, commands) : "";
  if (advice.empty()) advice = fmt::format("there are {}", fmt::join(commands, ", "));
  return fmt::format("there is no command '{}' of {}; {}", word, typed(app), advice);
}

bool asks_for_json(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--format=json") return true;
    if (word == "--format" && i + 1 < argc && std::string_view(argv[i + 1]) == "json") return true;
  }
  return false;
}

}  // namespace

std::optional<int> Program::parse(int argc, char** argv) {
  const auto refuse = [&](const std::string& message) {
    return end_with(fail(ErrorCode::InvalidArgument, message), asks_for_json(argc, argv));
  };
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app_->exit(help) == 0 ? kExitOk : kExitUsage;
  } catch (const CLI::ParseError& error) {
    const CLI::App& app = innermost(*app_);
    const bool is_known = dynamic_cast<const CLI::RequiredError*>(&error) == nullptr &&
                          dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr;
    if (app.get_require_subcommand_min() > 0 && app.remaining().empty())
      return refuse(fmt::format("{} is several commands; say which: {}", typed(app),
                                fmt::join(shown_subcommands(app), ", ")));
    if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
      return refuse(fmt::format("{} ({} --help shows what is meant)", error.what(), typed(app)));
    const auto stranger = is_known ? std::nullopt : about_stranger(app);
    return refuse(stranger ? *stranger : fmt::format("{}; {} --help shows more", error.what(), typed(app)));
  }
  return std::nullopt;
}
bool Program::says_json() const {
  const CLI::Option* format = innermost(*app_).get_option_no_throw("--format");
  return format != nullptr && format->count() > 0 && format->results().back() == "json";
}
void Program::parse(const std::vector<std::string>& arguments) {
  try {
    app_->parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    throw std::invalid_argument(error.what());
  }
}

}  // namespace weft::cli

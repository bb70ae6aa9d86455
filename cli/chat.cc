// weft chat: a conversation in the terminal with a service of the OpenAI API.
#include <fmt/format.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/printable.h"
#include "cli/api_client.h"
#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/exit_codes.h"
#include "cli/line_reader.h"
#include "cli/say.h"
#include "cli/signals.h"

namespace weft::cli {
namespace {

struct ChatOptions {
  ApiClientOptions client{.url = "http://127.0.0.1:7781/v1"};
  std::string system;
  double temperature = 0.8;
  uint32_t max_tokens = 0;
  std::optional<uint64_t> seed;
};

constexpr const char* kHelp =
    "A line is a message, and the answer comes as it is made. What was said is kept.\n"
    "  /new    begins a new conversation\n"
    "  /help   shows this\n"
    "A message that begins with a slash is written with two.\n"
    "Ctrl-C ends an answer, and a second one the program; so does Ctrl-D.\n";

class Chat {
 public:
  Chat(net::Loop& loop, web::Client& client, std::string model, const ChatOptions& options)
      : client_(client),
        model_(std::move(model)),
        options_(options),
        conversation_(options.system),
        lines_(loop, STDIN_FILENO) {}

  Result<int> run();
  void on_interrupt();
  void on_stop() {
    ends_ = true;
    client_.cancel();
  }

 private:
  Status take(std::string line);
  Status answer(std::string message);
  web::GenerateRequest request() const;
  Result<web::AnswerEnd> generate(std::string& text);
  void show(const std::string& piece);
  void note(const std::string& what) const { say(stderr, "({})\n", what); }
  void prompt() const {
    if (!is_terminal_) return;
    say(stdout, "> ");
    std::fflush(stdout);
  }

  web::Client& client_;
  const std::string model_;
  const ChatOptions& options_;
  Conversation conversation_;
  LineReader lines_;
  const bool is_terminal_ = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  bool ends_ = false, is_answering_ = false;
  int interrupts_ = 0;  // since the last line
};

// In a script the first one is meant for the program.
void Chat::on_interrupt() {
  if (++interrupts_ > 1 || !is_terminal_) return on_stop();
  if (is_answering_) return client_.cancel();
  say(stdout, "\n");
  note("Ctrl-C again, or Ctrl-D, ends");
  prompt();
}

web::GenerateRequest Chat::request() const {
  web::GenerateRequest request{.kind = web::ApiKind::Chat,
                               .model = model_,
                               .prompt = conversation_.messages(),
                               .temperature = options_.temperature};
  if (options_.max_tokens > 0) request.max_tokens = options_.max_tokens;
  if (options_.seed) request.seed = static_cast<int64_t>(*options_.seed);
  return request;
}

// What a model says moves no cursor of the reader's terminal.
void Chat::show(const std::string& piece) {
  const std::string shown = is_terminal_ ? printable(piece, Lines::Many) : piece;
  std::fwrite(shown.data(), 1, shown.size(), stdout);
  std::fflush(stdout);
  if (std::ferror(stdout) != 0) on_stop();  // whoever reads has gone
}

// Turns are left out from the beginning until the rest fits.
Result<web::AnswerEnd> Chat::generate(std::string& text) {
  bool is_shortened = false;
  const auto tell = [&] {
    if (std::exchange(is_shortened, false))
      note("the context is full: the oldest turns are left out from here on");
  };
  for (;;) {
    auto end = client_.generate(request(), [&](const std::string& piece) {
      tell();
      text += piece;
      show(piece);
    });
    if (end) tell();
    const bool is_too_long = !end && end.error().code == ErrorCode::OutOfRange && text.empty();
    if (!is_too_long || !conversation_.drop_oldest()) return end;
    is_shortened = true;
  }
}

// A message without an answer is as if it had not been said.
Status Chat::answer(std::string message) {
  const Conversation before = conversation_;
  conversation_.say(std::move(message));
  std::string text;
  is_answering_ = true;
  const auto end = generate(text);
  is_answering_ = false;
  if (end || !text.empty()) say(stdout, "\n");
  std::fflush(stdout);
  const bool is_interrupted = !end && end.error().code == ErrorCode::Cancelled;
  if (end || (is_interrupted && !text.empty()))
    conversation_.answer(std::move(text));
  else
    conversation_ = before;
  if (is_interrupted) return {};
  if (!end) return fail(end.error());
  if (end->breaks > 0)
    note(fmt::format("the connection broke {} times, and the answer went on", end->breaks));
  if (end->reason == "length")
    note(options_.max_tokens > 0 ? "the answer ends at --max-tokens, or where the context is full"
                                 : "the context is full: the answer ends here");
  return {};
}

Status Chat::take(std::string line) {
  if (line.find_first_not_of(" \t") == line.npos) return {};
  if (line == "/help") {
    say(stdout, "{}", kHelp);
  } else if (line == "/new") {
    conversation_.begin_anew();
    note("a new conversation");
  } else if (line.starts_with('/') && !line.starts_with("//")) {
    note("there is no " + printable(line.substr(0, 40)) + "; /help says what there is");
  } else {
    return answer(line.starts_with("//") ? line.substr(1) : std::move(line));
  }
  return {};
}

Result<int> Chat::run() {
  if (is_terminal_)
    say(stdout, "'{}' at {}; /help says what there is\n", printable(model_), options_.client.url);
  for (;;) {
    prompt();
    std::string line;
    const LineReader::State state = lines_.next(line, [this] { return ends_; });
    if (state == LineReader::State::TooLong)
      return fail(ErrorCode::ResourceExhausted,
                  fmt::format("a line has more than {} bytes", LineReader::kLineMax));
    if (state == LineReader::State::Stopped) break;
    if (state == LineReader::State::End) {
      if (is_terminal_) say(stdout, "\n");
      return kExitOk;
    }
    interrupts_ = 0;
    if (const Status status = take(std::move(line)); !status) {
      // People see it and go on; a script ends.
      if (!is_terminal_) return fail(status.error());
      say(stderr, "error: {}\n", status.error().message);
    }
    if (ends_) break;
  }
  if (is_terminal_) say(stdout, "\n");
  return kExitStopped;
}

Result<int> run_chat(const ChatOptions& options) {
  const SignalsBlocked blocked;
  net::Loop loop;
  WEFT_TRY(const auto client, make_client(loop, options.client));
  Chat* chat = nullptr;
  const auto stop = [&](int) { chat != nullptr ? chat->on_stop() : client->cancel(); };
  const auto interrupt = [&](int) { chat != nullptr ? chat->on_interrupt() : client->cancel(); };
  Signals others = stop_signals();
  std::erase(others, SIGINT);
  WEFT_TRY(const auto watch, SignalWatch::start(loop, interrupt, {SIGINT}));
  WEFT_TRY(const auto watch_others, SignalWatch::start(loop, stop, others));
  WEFT_TRY(std::string model, choose_model(*client, options.client));
  Chat talking(loop, *client, std::move(model), options);
  chat = &talking;
  return talking.run();
}

}  // namespace

void add_chat(CommandLine program, Command& chosen) {
  CommandLine command = program.subcommand("chat", "talk with a model that a service has, in the terminal");
  auto options = std::make_shared<ChatOptions>();
  command.option("--url", options->client.url, "the service: what weft serve prints").shows_default();
  options->client.add_to(command);
  command.option("--system", options->system,
                 "what stands before the conversation: how the model is to answer");
  command.option("--temperature", options->temperature, "0: always the likeliest token")
      .within(0.0, 2.0)
      .shows_default();
  command.option("--max-tokens", options->max_tokens, "of an answer; 0: until the context is full")
      .shows_default();
  command.option("--seed", options->seed, "of the draws: the same seed and messages, the same answers");
  command.runs(chosen, [options] { return run_chat(*options); });
}

}  // namespace weft::cli

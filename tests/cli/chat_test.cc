// The parts of weft chat: what is kept of a conversation, lines of a pipe and of a file, the service's model.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/api_client.h"
#include "cli/conversation.h"
#include "cli/line_reader.h"

namespace weft::cli {
namespace {

using Role = web::ChatMessage::Role;

TEST(Conversation, KeepsTurnsBehindItsSystemMessage) {
  Conversation conversation("be brief");
  conversation.say("a");
  conversation.answer("b");
  conversation.say("c");
  EXPECT_EQ(conversation.messages(),
            (std::vector<web::ChatMessage>{
                {Role::System, "be brief"}, {Role::User, "a"}, {Role::Assistant, "b"}, {Role::User, "c"}}));
  EXPECT_EQ(conversation.turns(), 2u);
  conversation.begin_anew();
  EXPECT_EQ(conversation.messages(), (std::vector<web::ChatMessage>{{Role::System, "be brief"}}));
}

TEST(Conversation, TheOldestTurnsGoAndTheLastStays) {
  Conversation conversation("");
  for (const char* text : {"a", "b", "c"}) {
    conversation.say(text);
    conversation.answer("so " + std::string(text));
  }
  EXPECT_TRUE(conversation.drop_oldest());
  EXPECT_EQ(conversation.messages().front(), (web::ChatMessage{Role::User, "b"}));
  EXPECT_TRUE(conversation.drop_oldest());
  EXPECT_FALSE(conversation.drop_oldest());
  EXPECT_EQ(conversation.messages(),
            (std::vector<web::ChatMessage>{{Role::User, "c"}, {Role::Assistant, "so c"}}));
}

std::vector<std::string> lines_of(LineReader& reader) {
  std::vector<std::string> lines;
  std::string line;
  while (reader.next(line, [] { return false; }) == LineReader::State::Line) lines.push_back(line);
  return lines;
}

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(ends), 0); }
  ~Pipe() {
    ::close(ends[0]);
    end();
  }
  void write(std::string_view text) const {
    EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void end() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  int ends[2] = {-1, -1};
};

TEST(LineReader, ReadsAPipe) {
  net::Loop loop;
  Pipe pipe;
  pipe.write("one\r\n\ntwo\nthree");
  pipe.end();
  LineReader reader(loop, pipe.ends[0]);
  EXPECT_EQ(lines_of(reader), (std::vector<std::string>{"one", "", "two", "three"}));
}

TEST(LineReader, ReadsAFileWhichNoLoopCanWaitFor) {
  net::Loop loop;
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  std::fputs("one\ntwo\n", file);
  std::rewind(file);
  LineReader reader(loop, ::fileno(file));
  EXPECT_EQ(lines_of(reader), (std::vector<std::string>{"one", "two"}));
  std::fclose(file);
}

TEST(LineReader, WaitsForALineAndCanBeStopped) {
  net::Loop loop;
  Pipe pipe;
  LineReader reader(loop, pipe.ends[0]);
  bool is_stopped = false;
  std::string line;
  const auto later = loop.after(std::chrono::milliseconds(1), [&] { pipe.write("late\n"); });
  EXPECT_EQ(reader.next(line, [&] { return is_stopped; }), LineReader::State::Line);
  EXPECT_EQ(line, "late");
  const auto stop = loop.after(std::chrono::milliseconds(1), [&] { is_stopped = true; });
  EXPECT_EQ(reader.next(line, [&] { return is_stopped; }), LineReader::State::Stopped);
}

TEST(LineReader, ALineIsBounded) {
  net::Loop loop;
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const std::string much(LineReader::kLineMax + 10'000, 'x');
  std::fwrite(much.data(), 1, much.size(), file);
  std::rewind(file);
  LineReader reader(loop, ::fileno(file));
  std::string line;
  EXPECT_EQ(reader.next(line, [] { return false; }), LineReader::State::TooLong);
  std::fclose(file);
}

class FakeClient final : public web::Client {
 public:
  explicit FakeClient(std::vector<std::string> names) : names_(std::move(names)) {}
  Result<std::vector<std::string>> models() override { return names_; }
  Result<web::AnswerEnd> generate(web::GenerateRequest,
                                  const std::function<void(const std::string&)>&) override {
    return web::AnswerEnd{};
  }
  void cancel() override {}

 private:
  const std::vector<std::string> names_;
};

TEST(ChooseModel, TheOnlyOneNeedsNoName) {
  FakeClient one({"gpt"}), none({}), two({"gpt", "llama"});
  EXPECT_EQ(choose_model(one, {}).value(), "gpt");
  EXPECT_EQ(choose_model(two, {.model = "llama"}).value(), "llama");
  EXPECT_EQ(choose_model(none, {}).error().code, ErrorCode::Unavailable);
  const auto several = choose_model(two, {});
  ASSERT_FALSE(several);
  EXPECT_EQ(several.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(several.error().message.find("gpt, llama"), std::string::npos);
}

TEST(ShownKey, IsWhatTheCommandLineSaysOrTheEnvironment) {
  const auto url = [](const std::string& text) { return *web::parse_url(text); };
  const web::Url here = url("http://127.0.0.1:7781/v1"), elsewhere = url("http://192.0.2.1:7781/v1");
  const web::Url secure = url("https://192.0.2.1:7781/v1");
  const char* before = std::getenv("WEFT_TOKEN");
  const std::string kept = before == nullptr ? "" : before;
  ::setenv("WEFT_TOKEN", "from-environment", 1);
  EXPECT_EQ(shown_key({}, here)->text, "from-environment");
  EXPECT_EQ(shown_key({}, secure)->text, "from-environment");
  EXPECT_EQ(shown_key({}, elsewhere)->text, "");
  EXPECT_NE(shown_key({}, elsewhere)->warning, "");
  EXPECT_EQ(shown_key({.token = "said"}, here)->text, "said");
  EXPECT_EQ(shown_key({.token = "said"}, here)->warning, "");
  EXPECT_EQ(shown_key({.token = "said"}, elsewhere)->text, "said");
  EXPECT_NE(shown_key({.token = "said"}, elsewhere)->warning, "");
  EXPECT_FALSE(shown_key({.token = "said", .key_file = "keys"}, here));
  EXPECT_EQ(shown_key({.token = "@/no/such/file"}, here).error().code, ErrorCode::NotFound);
  ::unsetenv("WEFT_TOKEN");
  EXPECT_EQ(shown_key({}, here)->text, "");
  if (before != nullptr) ::setenv("WEFT_TOKEN", kept.c_str(), 1);
}

}  // namespace
}  // namespace weft::cli

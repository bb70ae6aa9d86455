// weft chat as a person meets it: a program in a terminal, and a scripted service behind it.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/web/fake_service.h"
#include "web/api.h"
#include "web/server.h"

namespace weft::cli {
namespace {

struct Scripted {
  Scripted() {
    auto started = web::Server::start({}, web::make_api(service));
    EXPECT_TRUE(started) << started.error().message;
    server = std::move(*started);
  }
  std::string url() const { return "http://" + to_string(server->endpoint()) + "/v1"; }
  // How many messages the last request had.
  size_t messages() const {
    return std::get<std::vector<web::ChatMessage>>(service->last_request().prompt).size();
  }
  std::shared_ptr<web::test::FakeService> service = std::make_shared<web::test::FakeService>();
  std::unique_ptr<web::Server> server;  // goes first
};

class Talk {
 public:
  explicit Talk(const std::string& url) {
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ != 0) return;
    ::execl(WEFT_PROGRAM, "weft", "chat", "--url", url.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  ~Talk() { ::close(terminal_); }

  void type(std::string_view text) const {
    EXPECT_EQ(::write(terminal_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Waits until the text is seen behind what was seen last.
  bool shows(std::string_view text) {
    while (seen_.find(text) == seen_.npos)
      if (!read_some()) return false;
    seen_.erase(0, seen_.find(text) + text.size());
    return true;
  }
  const std::string& rest() const { return seen_; }
  int status() {
    while (read_some()) {
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  bool read_some() {
    pollfd polled{.fd = terminal_, .events = POLLIN, .revents = 0};
    if (::poll(&polled, 1, 60'000) <= 0) return false;  // long enough that only a hang reaches it
    std::array<char, 1024> bytes;
    const ssize_t size = ::read(terminal_, bytes.data(), bytes.size());
    if (size > 0) seen_.append(bytes.data(), static_cast<size_t>(size));
    return size > 0;
  }
  pid_t pid_ = -1;
  int terminal_ = -1;
  std::string seen_;
};

TEST(ChatTerminal, AConversationIsKeptUntilNew) {
  const Scripted scripted;
  Talk talk(scripted.url());
  ASSERT_TRUE(talk.shows("'fake' at http://")) << talk.rest();
  ASSERT_TRUE(talk.shows("> "));
  talk.type("good day\n");
  ASSERT_TRUE(talk.shows("good day\r\ngood day\r\n> ")) << talk.rest();  // the echo, and the answer
  talk.type("and you\n");
  ASSERT_TRUE(talk.shows("and you\r\nand you\r\n> ")) << talk.rest();
  EXPECT_EQ(scripted.messages(), 3u);
  talk.type("/new\n");
  ASSERT_TRUE(talk.shows("> "));
  talk.type("//x\n");
  ASSERT_TRUE(talk.shows("/x\r\n/x\r\n> ")) << talk.rest();
  EXPECT_EQ(scripted.messages(), 1u);
  talk.type("\x04");
  EXPECT_EQ(talk.status(), 0);
}

TEST(ChatTerminal, CtrlCEndsAnAnswerAndASecondOneTheProgram) {
  const Scripted scripted;
  Talk talk(scripted.url());
  ASSERT_TRUE(talk.shows("> ")) << talk.rest();
  talk.type("hang\n");
  ASSERT_TRUE(talk.shows("1 2 3")) << talk.rest();
  talk.type("\x03");
  EXPECT_TRUE(scripted.service->waits_for_cancelled(1));
  ASSERT_TRUE(talk.shows("> ")) << talk.rest();
  talk.type("good day\n");
  ASSERT_TRUE(talk.shows("good day\r\ngood day\r\n> ")) << talk.rest();
  EXPECT_EQ(scripted.messages(), 3u) << "what was said of the answer is kept";
  talk.type("\x03");
  ASSERT_TRUE(talk.shows("ends)\r\n> ")) << talk.rest();
  talk.type("\x03");
  EXPECT_EQ(talk.status(), 130);
}

TEST(ChatTerminal, AnErrorIsSaidAndTheMessageForgotten) {
  const Scripted scripted;
  Talk talk(scripted.url());
  ASSERT_TRUE(talk.shows("> ")) << talk.rest();
  talk.type("fail\n");
  ASSERT_TRUE(talk.shows("all caches are full")) << talk.rest();
  ASSERT_TRUE(talk.shows("> ")) << talk.rest();
  talk.type("good day\n");
  ASSERT_TRUE(talk.shows("good day\r\ngood day\r\n> ")) << talk.rest();
  EXPECT_EQ(scripted.messages(), 1u);
  talk.type("\x04");
  EXPECT_EQ(talk.status(), 0);
}

}  // namespace
}  // namespace weft::cli

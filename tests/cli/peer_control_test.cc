// The socket by which a peer's owner reaches it.
#include "cli/peer_control.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <thread>

#include "tests/support/scratch.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using Kind = ControlRequest::Kind;

TEST(PeerControlRequest, RoundTrip) {
  for (const ControlRequest& request :
       {ControlRequest{.kind = Kind::Pause}, ControlRequest{.kind = Kind::Resume},
        ControlRequest{.kind = Kind::Status},
        ControlRequest{.kind = Kind::Pause, .length = std::chrono::seconds(5400)}}) {
    std::string line = to_text(request);
    ASSERT_EQ(line.back(), '\n');
    line.pop_back();
    const auto parsed = parse_control_request(line);
    ASSERT_TRUE(parsed) << line;
    EXPECT_EQ(parsed->kind, request.kind);
    EXPECT_EQ(parsed->length, request.length);
  }
  for (const char* line : {"", "pause ", "pause x", "pause 0", "pause -5", "pause 5 ",
                           "pause 99999999999999999999", "pause 315360001", "stop", "resume now"})
    EXPECT_FALSE(parse_control_request(line)) << line;
}

// Whoever says where means those peers alone: another's, or the tests' beside one's own.
TEST(PeerControlFolders, AreOneWhereSomebodyChoseIt) {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return text != nullptr ? std::optional<std::string>(text) : std::nullopt;
  };
  const auto before = value("XDG_RUNTIME_DIR");
  ::setenv("XDG_RUNTIME_DIR", "/somewhere", 1);
  EXPECT_EQ(control_folders(), std::vector<fs::path>{"/somewhere/weft"});
  const std::string usual = "/run/user/" + std::to_string(::geteuid());
  ::setenv("XDG_RUNTIME_DIR", usual.c_str(), 1);
  const std::vector<fs::path> folders = control_folders();
  ASSERT_GE(folders.size(), 1u);
  EXPECT_EQ(folders[0], usual + "/weft");
  EXPECT_EQ(folders.size(), value("HOME") ? 2u : 1u) << "one that was started without it lies elsewhere";
  if (before)
    ::setenv("XDG_RUNTIME_DIR", before->c_str(), 1);
  else
    ::unsetenv("XDG_RUNTIME_DIR");
}

// A peer that answers on a thread of its own, until its end.
class Answering {
 public:
  explicit Answering(const fs::path& folder, const std::string& name)
      : control_(PeerControl::open({folder}, name, "attic\tof " + name).value()), thread_([this] {
          control_->attach(loop_, [this](const ControlRequest& request) {
            last_ = request;
            return std::string("heard\x1b");
          });
          loop_.run();
          control_->detach();
        }) {}
  ~Answering() {
    loop_.stop();
    thread_.join();
  }
  const fs::path& path() const { return control_->path(); }
  const ControlRequest& last() const { return last_; }  // after an answer came

 private:
  net::Loop loop_;
  std::unique_ptr<PeerControl> control_;
  ControlRequest last_;
  std::thread thread_;
};

// One that says nothing or too much; its descriptor.
int caller_at(const fs::path& path, const std::string& says) {
  const int descriptor = ::socket(AF_UNIX, SOCK_STREAM, 0);
  const int folder =
      ::open(path.parent_path().c_str(), O_PATH);  // its own path may be too long for an address
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s", folder,
                path.filename().c_str());
  EXPECT_EQ(::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  ::close(folder);
  EXPECT_EQ(::send(descriptor, says.data(), says.size(), MSG_NOSIGNAL), static_cast<ssize_t>(says.size()));
  return descriptor;
}

class PeerControlTest : public testing::Test {
 protected:
  test::Scratch scratch_;
  const fs::path folder_ = scratch_.folder() / "run";
};

TEST_F(PeerControlTest, EveryPeerOfTheFolderAnswers) {
  const Answering ann(folder_, "ann"), bob(folder_, "bob");
  const auto answers = ask_peers({folder_, scratch_.folder() / "none"},
                                 {.kind = Kind::Pause, .length = std::chrono::minutes(90)});
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0].process, "ann");
  EXPECT_EQ(answers[0].name, "attic?of ann") << "a tab ends a name";
  EXPECT_EQ(answers[1].name, "attic?of bob");
  for (const ControlAnswer& answer : answers) EXPECT_EQ(answer.said.value(), "heard?");
  EXPECT_EQ(ann.last().kind, Kind::Pause);
  EXPECT_EQ(ann.last().length, std::chrono::minutes(90));
}

TEST_F(PeerControlTest, OnlyItsUserMayEnter) {
  fs::create_directories(folder_);
  fs::permissions(folder_, fs::perms::all);
  const Answering ann(folder_, "ann");
  struct stat status {};
  ASSERT_EQ(::lstat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  ASSERT_EQ(::lstat(ann.path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  fs::create_directory_symlink(folder_, scratch_.folder() / "link");
  EXPECT_FALSE(PeerControl::open({scratch_.folder() / "link"}, "eve", "eve")) << "a link may lead anywhere";
}

TEST_F(PeerControlTest, SocketsOfThoseWhoAreGoneAreRemoved) {
  fs::path path;
  {
    const Answering ann(folder_, "ann");
    path = ann.path();
    fs::create_hard_link(path, folder_ / "killed.sock");  // as a process leaves it that is killed
  }
  EXPECT_FALSE(fs::exists(path));
  ASSERT_TRUE(fs::exists(folder_ / "killed.sock"));
  EXPECT_TRUE(ask_peers({folder_}, {}).empty());
  EXPECT_FALSE(fs::exists(folder_ / "killed.sock"));
}

TEST_F(PeerControlTest, TheNextFolderIsTakenWhereTheFirstCannotBe) {
  const fs::path file = scratch_.write("file", "no folder");
  EXPECT_EQ(PeerControl::open({file, folder_}, "ann", "ann").value()->path(), folder_ / "ann.sock");
  EXPECT_FALSE(PeerControl::open({}, "ann", "ann"));
  EXPECT_FALSE(PeerControl::open({folder_}, std::string(300, 'x'), "ann"));
}

TEST_F(PeerControlTest, AFoldersPathMayBeLongerThanASocketsAddress) {
  const fs::path deep = scratch_.folder() / std::string(120, 'x') / std::string(120, 'y');
  const Answering ann(deep, "ann");
  const auto answers = ask_peers({deep}, {});
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].said.value(), "heard?");
}

TEST_F(PeerControlTest, WhoSaysNothingOrTooMuchKeepsNobodyElseOut) {
  const Answering ann(folder_, "ann");
  std::vector<int> callers;
  for (int i = 0; i < 40; ++i)
    callers.push_back(caller_at(ann.path(), i % 2 == 0 ? "" : std::string(1000, 'x')));
  const auto answers = ask_peers({folder_}, {});
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].said.value(), "heard?");
  for (const int caller : callers) ::close(caller);
}

}  // namespace
}  // namespace weft::cli

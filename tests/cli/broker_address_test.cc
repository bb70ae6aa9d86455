// Where the broker is: options before the environment before the login; tokens given in any way, and never of
// the wrong role.
#include "cli/broker_address.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "tests/support/scratch.h"

namespace weft::cli {
namespace {
namespace fs = std::filesystem;
using security::Role;

class BrokerAddressTest : public testing::Test {
 protected:
  BrokerAddressTest() {
    setenv("XDG_CONFIG_HOME", (scratch_.folder() / "config").c_str(), 1);
    unsetenv("WEFT_BROKER");
    unsetenv("WEFT_TOKEN");
  }
  static std::string token(Role role) { return security::to_text(security::make_token(role, {})); }
  static std::string endpoint_of(const BrokerOptions& options) {
    const auto found = find_broker(options);
    return found ? net::to_string(found->endpoint) : "error: " + found.error().message;
  }
  void log_in(const std::string& broker) {
    const auto folder = config_folder();
    ASSERT_TRUE(folder.has_value());
    const auto saved = save_login(*folder, {broker, submitter_});
    ASSERT_TRUE(saved.has_value()) << saved.error().message;
    login_ = *saved;
  }

  test::Scratch scratch_;
  const std::string submitter_ = token(Role::Submitter), peer_ = token(Role::Peer);
  fs::path login_;
};

TEST_F(BrokerAddressTest, ATokenIsTextFileOrStandardInput) {
  const auto expected = security::parse_token(peer_);
  EXPECT_EQ(read_token(peer_, Role::Peer).value(), *expected);
  const fs::path file = scratch_.write("token", "  " + peer_ + "\n");
  EXPECT_EQ(read_token("@" + file.string(), Role::Peer).value(), *expected);
  std::FILE* input = std::fopen(file.c_str(), "r");
  ASSERT_NE(input, nullptr);
  EXPECT_EQ(read_token("-", Role::Peer, input).value(), *expected);
  std::fclose(input);
}

TEST_F(BrokerAddressTest, ATokenOfTheOtherRoleIsRefusedWithAdvice) {
  const auto token = read_token(peer_, Role::Submitter);
  ASSERT_FALSE(token.has_value());
  EXPECT_EQ(token.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(token.error().message.find("weft token create --role submitter"), std::string::npos)
      << token.error().message;
}

TEST_F(BrokerAddressTest, AnAdminsTokenIsGoodForAUser) {
  const std::string admin = token(Role::Admin);
  EXPECT_EQ(read_token(admin, Role::Submitter).value().role, Role::Admin);
  EXPECT_FALSE(read_token(admin, Role::Peer));
}

TEST_F(BrokerAddressTest, AMissingOrWrongTokenFileIsNamed) {
  const std::string path = (scratch_.folder() / "none").string();
  const auto missing = read_token("@" + path, Role::Peer);
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::NotFound);
  EXPECT_NE(missing.error().message.find(path), std::string::npos);
  const auto wrong = read_token("@" + scratch_.write("wrong", "hello").string(), Role::Peer);
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("wrong"), std::string::npos);
}

TEST_F(BrokerAddressTest, OptionsWinOverTheEnvironmentAndThatOverTheLogin) {
  log_in("login.example:1");
  EXPECT_EQ(endpoint_of({}), "login.example:1");
  setenv("WEFT_BROKER", "environment.example:2", 1);
  setenv("WEFT_TOKEN", submitter_.c_str(), 1);
  EXPECT_EQ(endpoint_of({}), "environment.example:2");
  EXPECT_EQ(endpoint_of({.broker = "option.example:3", .token = submitter_}), "option.example:3");
}

TEST_F(BrokerAddressTest, AKeptTokenIsNotShownToAnotherBroker) {
  log_in("login.example:1");
  const std::string answer = endpoint_of({.broker = "other.example:1", .token = {}});
  EXPECT_NE(answer.find("no token for the broker other.example:1"), std::string::npos) << answer;
}

TEST_F(BrokerAddressTest, WithoutAnythingItSaysWhatToDo) {
  const auto found = find_broker({});
  ASSERT_FALSE(found.has_value());
  EXPECT_EQ(found.error().code, ErrorCode::InvalidArgument);
  EXPECT_NE(found.error().message.find("weft login"), std::string::npos);
}

TEST_F(BrokerAddressTest, TheLoginIsForItsOwnerAlone) {
  log_in("login.example:1");
  struct stat status {};
  ASSERT_EQ(stat(login_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(BrokerAddressTest, ADamagedLoginIsNamedNotUsed) {
  log_in("login.example:1");
  for (const char* text : {"", "{", "[]", "{\"format\":1}", "{\"format\":1,\"broker\":3,\"token\":\"x\"}"}) {
    std::ofstream(login_) << text;
    const auto found = find_broker({});
    ASSERT_FALSE(found.has_value()) << text;
    EXPECT_EQ(found.error().code, ErrorCode::Corrupted) << text;
  }
  std::ofstream(login_) << "{\"format\":9,\"broker\":\"a:1\",\"token\":\"x\"}";
  EXPECT_EQ(find_broker({}).error().code, ErrorCode::VersionMismatch);
}

}  // namespace
}  // namespace weft::cli

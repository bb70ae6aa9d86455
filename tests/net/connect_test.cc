// Attempts to connect: who is refused, who is not there, who never answers.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/connection.h"
#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

TEST(Connect, WrongKeyOfTheServerIsRefused) {
  Meeting meeting;
  auto options = meeting.client_options();
  options.expected = other_identity().id();
  const auto outcome = meeting.begin(options);
  ASSERT_TRUE(meeting.run_until(
      [&] { return outcome->is_done() && meeting.listener->stats().handshakes_failed == 1; }));
  EXPECT_EQ(outcome->code(), ErrorCode::PermissionDenied);
  EXPECT_NE(outcome->message().find(to_string(meeting.listener->endpoint())), std::string::npos)
      << outcome->message();
  EXPECT_NE(outcome->message().find(to_string(server_identity().id())), std::string::npos)
      << outcome->message();
  EXPECT_TRUE(meeting.accepted.empty());
}

TEST(Connect, ClientThatIsNotAdmittedIsClosed) {
  Meeting meeting({.admits = [](const PeerId& id) { return id == other_identity().id(); }});
  const auto refused = meeting.begin();
  ASSERT_TRUE(meeting.run_until([&] { return refused->is_done(); }));
  if (refused->is_connected()) {  // in TLS 1.3 the client is through before the server has judged
    Side client{.connection = **refused->result};
    client.start();
    ASSERT_TRUE(meeting.run_until([&] { return client.closed.has_value(); }));
    EXPECT_TRUE(client.frames.empty());
  }
  EXPECT_TRUE(meeting.accepted.empty());
  auto options = meeting.client_options();
  options.identity = &other_identity();
  const auto admitted = meeting.begin(options);
  ASSERT_TRUE(meeting.run_until([&] { return !meeting.accepted.empty(); }));
  EXPECT_EQ(meeting.accepted[0]->remote(), other_identity().id());
}

TEST(Connect, NobodyListensIsUnavailable) {
  Meeting meeting;
  const Endpoint endpoint = meeting.listener->endpoint();
  meeting.listener.reset();
  std::optional<Error> error;
  const auto attempt = connect(meeting.loop, endpoint, meeting.client_options(),
                               [&](const Result<ConnectionPtr>& result) { error = result.error(); });
  EXPECT_FALSE(error) << "called from within connect()";
  ASSERT_TRUE(meeting.run_until([&] { return error.has_value(); }));
  EXPECT_EQ(error->code, ErrorCode::Unavailable);
  EXPECT_NE(error->message.find(to_string(endpoint)), std::string::npos) << error->message;
}

TEST(Connect, SilentServerIsATimeout) {
  Loop loop;
  // The system's queue accepts; nobody answers.
  const int listening = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::bind(listening, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(listening, 8), 0);
  ::getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size);
  std::optional<Error> error;
  const auto attempt = connect(loop, {"127.0.0.1", ntohs(address.sin_port)},
                               {.identity = &client_identity(),
                                .expected = server_identity().id(),
                                .deadline = std::chrono::milliseconds(50),
                                .shape = {}},
                               [&](const Result<ConnectionPtr>& result) { error = result.error(); });
  ASSERT_TRUE(loop.run_until(kPatience, [&] { return error.has_value(); }));
  EXPECT_EQ(error->code, ErrorCode::Timeout);
  ::close(listening);
}

TEST(Connect, NamesAreLookedUp) {
  Meeting meeting;
  Endpoint endpoint = meeting.listener->endpoint();
  endpoint.host = "localhost";
  std::optional<Result<ConnectionPtr>> result;
  const auto attempt = connect(meeting.loop, endpoint, meeting.client_options(),
                               [&](Result<ConnectionPtr> got) { result = std::move(got); });
  ASSERT_TRUE(meeting.run_until([&] { return result.has_value(); }));
  EXPECT_TRUE(*result) << result->error().message;
}

TEST(Connect, AnUnknownNameIsUnavailable) {
  Meeting meeting;
  std::optional<Error> error;
  const auto attempt = connect(meeting.loop, {"name.invalid", 7000}, meeting.client_options(),
                               [&](const Result<ConnectionPtr>& result) { error = result.error(); });
  ASSERT_TRUE(meeting.run_until([&] { return error.has_value(); }));
  EXPECT_TRUE(error->code == ErrorCode::Unavailable) << error->message;
}

TEST(Connect, DestroyedAttemptsNeverCallBack) {
  Meeting meeting;
  int calls = 0;
  for (int turns = 0; turns < 40; ++turns) {
    auto attempt = connect(meeting.loop, meeting.listener->endpoint(), meeting.client_options(),
                           [&](const Result<ConnectionPtr>&) { ++calls; });
    int left = turns % 10;  // at each of its steps
    meeting.run_until([&] {
      if (left > 0) meeting.loop.post([] {});
      return calls > 0 || --left < 0;
    });
    const int before = calls;
    attempt.reset();
    const auto last = meeting.begin();
    ASSERT_TRUE(meeting.run_until([&] { return last->is_done(); }));
    EXPECT_EQ(calls, before);
    calls = 0;
  }
}

TEST(Connect, AnAttemptMayBeDestroyedInItsResult) {
  Meeting meeting;
  std::unique_ptr<Attempt> attempt;
  bool is_done = false;
  attempt = connect(meeting.loop, meeting.listener->endpoint(), meeting.client_options(),
                    [&](const Result<ConnectionPtr>& result) {
                      EXPECT_TRUE(result);
                      attempt.reset();
                      is_done = true;
                    });
  ASSERT_TRUE(meeting.run_until([&] { return is_done; }));
}

TEST(Connect, TwoHundredAtOnce) {
  Meeting meeting({.limits = {.handshakes_max = 1000, .handshakes_max_per_address = 1000}});
  std::vector<std::unique_ptr<Outcome>> outcomes;
  for (int i = 0; i < 200; ++i) outcomes.push_back(meeting.begin());
  ASSERT_TRUE(meeting.run_until([&] {
    return meeting.accepted.size() == 200 &&
           std::all_of(outcomes.begin(), outcomes.end(), [](const auto& o) { return o->is_done(); });
  }));
  std::vector<Side> clients(200), servers(200);
  for (size_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(outcomes[i]->is_connected()) << outcomes[i]->message();
    clients[i].connection = **outcomes[i]->result;
    servers[i].connection = meeting.accepted[i];
    clients[i].start();
    servers[i].start();
    clients[i].connection->send(make_frame(1, random_bytes(i, 1000)));
    servers[i].connection->send(make_frame(2, random_bytes(i, 2000)));
  }
  ASSERT_TRUE(meeting.run_until([&] {
    const auto has_one = [](const Side& side) { return side.frames.size() == 1; };
    return std::all_of(clients.begin(), clients.end(), has_one) &&
           std::all_of(servers.begin(), servers.end(), has_one);
  }));
  EXPECT_EQ(meeting.listener->stats().open_connections, 200u);
}

}  // namespace
}  // namespace weft::net::test

// Peers whose device is as late as the contract allows (tests/support/late_backend.h), with a broker and a
// client in this process: nothing that a real device would still be working on is read too early, and the
// trained file is, byte for byte, that of one machine. The device computes in float32, as what crosses is.
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "broker/service/broker_service.h"
#include "cli/commands.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "peer/service/peer_service.h"
#include "tests/support/late_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {

// A peer on a loop and thread of its own.
class LatePeer {
 public:
  LatePeer(const net::Endpoint& broker, const security::Token& token, const std::string& name) {
    peer::PeerServiceOptions options;
    options.broker = broker;
    options.broker_key = token.broker;
    options.identity = identity_.get();
    options.hello.role = proto::Role::Peer;
    options.hello.name = name;
    options.hello.token = proto::TokenProof{token.id, token.secret.bytes};
    options.hello.device = {.device = "late",
                            .rates = {},
                            .memory = Bytes{int64_t{1} << 30},
                            .fingerprint = device_->numerics_fingerprint(),
                            .traits = device_->traits()};
    options.listen = net::Endpoint{"127.0.0.1", 0};
    options.make_backend = [this] { return std::make_unique<test::LateBackend>(*device_); };
    options.log = [](const std::string&) {};
    service_ = std::make_unique<peer::PeerService>(loop_, std::move(options));
    thread_ = std::thread([this] { left = service_->run(); });
  }
  ~LatePeer() {
    service_->stop();
    thread_.join();
  }
  Status left;

 private:
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  std::unique_ptr<peer::Backend> device_ = *peer::make_cpu_backend({.threads = 1, .pin = false});
  net::Loop loop_;
  std::unique_ptr<peer::PeerService> service_;
  std::thread thread_;
};

Result<int> weft(const std::vector<std::string>& arguments) {
  CLI::App app;
  Command chosen;
  add_local(app, chosen);
  add_submit(app, chosen);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  app.parse(reversed);
  return chosen();
}

TEST(LateDevice, TrainsBehindABrokerToTheBytesOfOneMachine) {
  const test::Scratch scratch;
  const auto& folder = scratch.folder();
  ASSERT_EQ(::setenv("XDG_DATA_HOME", folder.c_str(), 1), 0);
  ASSERT_EQ(::setenv("XDG_CONFIG_HOME", folder.c_str(), 1), 0);
  auto broker = broker::BrokerService::start({.data_dir = folder / "broker",
                                              .listen = {"127.0.0.1", 0},
                                              .advertise = "",
                                              .software = "test",
                                              .log = [](const std::string&) {}});
  ASSERT_TRUE(broker.has_value()) << broker.error().message;
  const auto token = security::parse_token((*broker)->peer_token());
  ASSERT_TRUE(token.has_value());
  std::vector<std::unique_ptr<LatePeer>> peers;
  for (const char* name : {"a", "b", "c"})
    peers.push_back(std::make_unique<LatePeer>((*broker)->endpoint(), *token, name));

  test::unpack_case("two_heads", folder);
  const std::string job = (folder / "job.yaml").string();
  for (const std::string clip : {"null", "0.5"}) {
    SCOPED_TRACE("clip_norm " + clip);
    const std::vector<std::string> sets{"--set", "steps=6",           "--set", "microbatch_size=4",
                                        "--set", "evaluate_every=3",  "--set", "gradient_ranges=2",
                                        "--set", "clip_norm=" + clip, "--set", "checkpoint={steps: 2}"};
    const auto with = [&](std::vector<std::string> arguments, const std::string& output) {
      arguments.insert(arguments.end(), sets.begin(), sets.end());
      arguments.insert(arguments.end(), {"--set", "output=" + (folder / output).string()});
      const auto code = weft(arguments);
      ASSERT_TRUE(code.has_value()) << code.error().message;
      ASSERT_EQ(*code, 0);
    };
    with({"local", job, "--backend", "cpu", "--threads", "1"}, clip + ".local.onnx");
    with({"submit", job, "--broker", net::to_string((*broker)->endpoint()), "--token",
          *(*broker)->submitter_token(), "--set", "placement.stages=3"},
         clip + ".late.onnx");
    EXPECT_TRUE(test::read_file(folder / (clip + ".local.onnx")) ==
                test::read_file(folder / (clip + ".late.onnx")));
  }
  peers.clear();
  (*broker)->stop();
}

}  // namespace
}  // namespace weft::cli

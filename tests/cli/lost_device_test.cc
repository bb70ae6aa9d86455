// A peer whose device is lost in the middle of a run, with a broker and a client in this process: the peer
// ends and says why, another one takes its stage, and the trained file is, byte for byte, that of one
// machine.
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <thread>

#include "broker/service/broker_service.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/cli/peer_here.h"
#include "tests/support/failing_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {

std::unique_ptr<peer::Backend> make_device(test::DeviceCalls::Faults faults) {
  return std::make_unique<test::FailingBackend>(*peer::make_cpu_backend({.threads = 1, .pin = false}),
                                                std::make_shared<test::DeviceCalls>(faults));
}

TEST(LostDevice, EndsItsPeerAndNotTheRun) {
  const test::Scratch scratch;
  const auto& folder = scratch.folder();
  ASSERT_EQ(::setenv("XDG_DATA_HOME", folder.c_str(), 1), 0);
  ASSERT_EQ(::setenv("XDG_CONFIG_HOME", folder.c_str(), 1), 0);
  auto broker = broker::BrokerService::start({.data_dir = folder / "broker",
                                              .listen = {"127.0.0.1", 0},
                                              .advertise = "",
                                              .log = [](const std::string&) {},
                                              .program = WEFT_PROGRAM});
  ASSERT_TRUE(broker.has_value()) << broker.error().message;
  const auto token = security::parse_token((*broker)->peer_token());
  ASSERT_TRUE(token.has_value());
  const auto join = [&](const char* name, test::DeviceCalls::Faults faults) {
    return std::make_unique<PeerHere>((*broker)->endpoint(), *token, name,
                                      [faults] { return make_device(faults); });
  };
  test::unpack_case("two_heads", folder);
  const std::string job = (folder / "job.yaml").string();
  const auto with = [&](std::vector<std::string> arguments, const std::string& output) {
    arguments.insert(arguments.end(),
                     {"--set", "steps=8", "--set", "microbatch_size=4", "--set", "checkpoint={steps: 2}",
                      "--set", "output=" + (folder / output).string()});
    const auto code = weft(arguments);
    ASSERT_TRUE(code.has_value()) << code.error().message;
    ASSERT_EQ(*code, 0);
  };
  with({"local", job, "--backend", "cpu", "--threads", "1"}, "local.onnx");

  constexpr uint64_t kInTheMiddle = 100;  // of the smaller stage, too, whichever it gets
  const auto stays = join("stays", {}), goes = join("goes", {.lost_at = kInTheMiddle, .hangs_at = {}});
  std::unique_ptr<PeerHere> spare;
  Status left;
  std::thread replacement([&] {
    left = goes->wait();
    spare = join("spare", {});
  });
  with({"submit", job, "--broker", net::to_string((*broker)->endpoint()), "--token",
        *(*broker)->submitter_token(), "--set", "placement.stages=2"},
       "lost.onnx");
  goes->stop();  // if it is still there nothing was lost, which is said below
  replacement.join();
  ASSERT_FALSE(left.has_value());
  EXPECT_EQ(left.error().code, ErrorCode::DeviceLost);
  EXPECT_NE(left.error().message.find("the device fell off the bus"), std::string::npos)
      << left.error().message;
  EXPECT_TRUE(test::read_file(folder / "local.onnx") == test::read_file(folder / "lost.onnx"));
  spare.reset();
  (*broker)->stop();
}

TEST(LostDevice, ThatNeverAnswersDoesNotHoldItsPeer) {
  const auto identity = *security::Identity::generate();
  std::promise<void> answers;
  peer::PeerServiceOptions options;
  options.broker = {"127.0.0.1", 1};
  options.identity = identity.get();
  options.hello.role = proto::Role::Peer;
  options.hello.device = proto::DeviceReport{};
  options.log = [](const std::string&) {};
  options.make_backend = [answered = answers.get_future().share()] {
    answered.wait();
    return peer::make_cpu_backend({.threads = 1, .pin = false});
  };
  net::Loop loop;
  peer::PeerService service(loop, std::move(options));
  service.request_drain();
  EXPECT_TRUE(service.run().has_value());
  EXPECT_FALSE(service.rest(Duration::zero())) << "then weft join ends without waiting for it";
  answers.set_value();
  EXPECT_TRUE(service.rest(std::chrono::seconds(120)));
}

}  // namespace
}  // namespace weft::cli

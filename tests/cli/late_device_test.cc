// Peers whose device is as late as the contract allows (tests/support/late_backend.h), with a broker and a
// client in this process: nothing that a real device would still be working on is read too early, and the
// trained file is, byte for byte, that of one machine. The device computes in float32, as what crosses is.
#include <gtest/gtest.h>

#include <cstdlib>

#include "broker/service/broker_service.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/cli/peer_here.h"
#include "tests/support/late_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {

TEST(LateDevice, TrainsBehindABrokerToTheBytesOfOneMachine) {
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
  std::vector<std::unique_ptr<peer::Backend>> devices;
  std::vector<std::unique_ptr<PeerHere>> peers;
  for (const char* name : {"a", "b", "c"}) {
    devices.push_back(*peer::make_cpu_backend({.threads = 1, .pin = false}));
    peers.push_back(std::make_unique<PeerHere>(
        (*broker)->endpoint(), *token, name,
        [device = devices.back().get()] { return std::make_unique<test::LateBackend>(*device); }));
  }

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

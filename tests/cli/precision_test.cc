// A job's precision, from its file to the kernels of the peer that gets it, with a broker and a client in
// this process.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>

#include "broker/service/broker_service.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/cli/peer_here.h"
#include "tests/support/failing_backend.h"
#include "tests/support/scratch.h"
#include "tests/train/reference_files.h"

namespace weft::cli {
namespace {

// Says that it has every precision, counts the kernels that are made for this one, and computes in float32.
class ObligingBackend final : public test::FailingBackend {
 public:
  explicit ObligingBackend(std::shared_ptr<std::atomic<int>> tf32_kernels)
      : FailingBackend(*peer::make_cpu_backend({.threads = 1, .pin = false}),
                       std::make_shared<test::DeviceCalls>(test::DeviceCalls::Faults{})),
        tf32_kernels_(std::move(tf32_kernels)) {}
  Status check(const peer::Precision&) const override { return {}; }
  Result<std::unique_ptr<peer::Kernel>> make_kernel(const dag::Graph& graph,
                                                    const peer::GroupSignature& group) override {
    if (group.precision == peer::Precision{.compute = dag::Arithmetic::TF32}) ++*tf32_kernels_;
    peer::GroupSignature plain = group;
    plain.precision = {};
    return FailingBackend::make_kernel(graph, plain);
  }

 private:
  std::shared_ptr<std::atomic<int>> tf32_kernels_;
};

TEST(JobPrecision, ReachesTheKernelsOfAPeerThatHasIt) {
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
  const auto kernels = std::make_shared<std::atomic<int>>(0);
  // Who has not the precision would fail at its first kernel, and the job would say so.
  PeerHere plain((*broker)->endpoint(), *token, "plain",
                 [] { return *peer::make_cpu_backend({.threads = 1, .pin = false}); });
  PeerHere tensor((*broker)->endpoint(), *token, "tensor",
                  [kernels] { return std::make_unique<ObligingBackend>(kernels); },
                  {dag::Arithmetic::F32, dag::Arithmetic::TF32});
  test::unpack_case("two_heads", folder);
  const auto code =
      weft({"submit", (folder / "job.yaml").string(), "--broker", net::to_string((*broker)->endpoint()),
            "--token", *(*broker)->submitter_token(), "--set", "steps=2", "--set", "precision=tf32", "--set",
            "output=" + (folder / "trained.onnx").string()});
  ASSERT_TRUE(code.has_value()) << code.error().message;
  EXPECT_EQ(*code, 0);
  EXPECT_GT(kernels->load(), 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "trained.onnx"));
  (*broker)->stop();
}

}  // namespace
}  // namespace weft::cli

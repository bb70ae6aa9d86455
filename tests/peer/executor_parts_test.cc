// What an executor is made of: the work behind each group of a program, and its running statistics.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "peer/backend/cpu/cpu_backend.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/group_work.h"
#include "peer/running_statistics.h"
#include "tests/peer/blended.h"

namespace weft::peer {
namespace {

TEST(GroupWork, EachGradientAndEachStatisticIsSeenToOnce) {
  for (const char* name : {"residual", "rounded"}) {
    SCOPED_TRACE(name);
    const test::Model model = model_of(name);
    const auto backend = make_reference_backend();
    Training training(model, *backend);
    const Graph& graph = training.executor().graph();
    const Program& program = training.executor().program();
    std::map<uint32_t, int> gradients;
    std::map<std::string, int> statistics, expected;
    size_t once = 0;
    for (const GroupWork& work : work_of_groups(graph, program, {})) {
      for (const uint32_t slot : work.gradients) ++gradients[slot];
      for (const auto& copy : work.copies) ++gradients[copy.slot];
      for (const auto& [value, initializer] : work.state_updates)
        ++statistics[graph.initializers()[initializer].name];
      once += work.segment == kOnceAStep;
      EXPECT_TRUE(work.segment == kOnceAStep || work.segment == 0);
    }
    ASSERT_EQ(gradients.size(), program.gradients.size());
    for (const auto& [slot, times] : gradients) EXPECT_EQ(times, 1) << slot;
    for (const auto& output : graph.outputs())
      if (output.role == OutputRole::StateUpdate) expected[output.name] = 1;
    EXPECT_EQ(statistics, expected);
    EXPECT_EQ(expected.empty(), std::string(name) == "rounded");
    EXPECT_EQ(once > 0, std::string(name) == "rounded");
  }
}

TEST(RunningStatistics, AreKeptAsTheyAreAndPutBack) {
  const auto backend = make_reference_backend();
  const dag::TensorSpec spec{dag::DType::F32, {4}};
  const Bytes size = backend->storage_bytes(spec, dag::Layout::Plain);
  const auto memory = value_or_fail(backend->allocate(Bytes{2 * size.value}));
  const View statistic{memory.get(), 0}, kept{memory.get(), size.value};
  const RunningStatistics statistics({{statistic, spec}}, {kept});
  const Tensor before = test::random_tensor(1, 1, spec.shape), after = test::random_tensor(2, 1, spec.shape);
  ok_or_fail(backend->upload(before, statistic, dag::Layout::Plain));
  ok_or_fail(statistics.keep(*backend));
  ok_or_fail(backend->upload(after, statistic, dag::Layout::Plain));
  double squares = 0;
  for (const double value : to_doubles(after)) squares += value * value;
  EXPECT_DOUBLE_EQ(to_doubles(value_or_fail(value_or_fail(statistics.begin_squares(*backend))->take()))[0],
                   squares);
  ok_or_fail(statistics.undo(*backend));
  EXPECT_EQ(to_doubles(value_or_fail(backend->download(statistic, spec, dag::Layout::Plain))),
            to_doubles(before));
  EXPECT_EQ(value_or_fail(RunningStatistics().begin_squares(*backend)), nullptr) << "there are none";
}

TEST(RunningStatistics, ComeToTheSameBitsWhereAnotherGraphBlendsThemIn) {
  // Not of the reference, which keeps doubles, and rounds what leaves it.
  for (const bool own : {false, true})
    expect_blended_bits(*value_or_fail(make_cpu_backend({.threads = 1, .own_convolutions = own})));
}

}  // namespace
}  // namespace weft::peer

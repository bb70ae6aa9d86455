// Functions and subgraphs: small files that stand for much.
#include <limits>

#include "dag/onnx/limits.h"
#include "tests/onnx/hostile_parts.h"

namespace weft::onnx::testing::hostile {
namespace {

pb::FunctionProto& function(ModelMaker& m, int number) {
  auto& f = *m.proto.add_functions();
  f.set_domain("f");
  f.set_name("f" + std::to_string(number));
  f.add_input("a");
  f.add_output("b");
  return f;
}
template <typename Nodes>
pb::NodeProto& add_node(Nodes& nodes, const std::string& op, const std::vector<std::string>& inputs,
                        const std::vector<std::string>& outputs, const std::string& domain = "") {
  auto& node = *nodes.add_node();
  node.set_op_type(op);
  node.set_domain(domain);
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}
pb::GraphProto& body(pb::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::GRAPH);
  return *attribute.mutable_g();
}
// Calls f0, where each function calls the next `times` times.
std::string chain_of_functions(int length, int times) {
  return of([&](ModelMaker& m) {
    for (int i = 0; i < length; ++i) {
      auto& f = function(m, i);
      std::string last = "a";
      const bool leaf = i + 1 == length;
      for (int k = 0; k < times; ++k) {
        const std::string next = k + 1 == times ? "b" : "t" + std::to_string(k);
        add_node(f, leaf ? "Relu" : "f" + std::to_string(i + 1), {last}, {next}, leaf ? "" : "f");
        last = next;
      }
    }
    m.node("f0", {"x"}, {"q"}).set_domain("f");
  });
}

// A loop over h in the graph `nodes`, with h handed on by what the caller puts into its body as h_next.
template <typename Nodes>
pb::GraphProto& loop(Nodes& nodes, const std::string& trips, const std::string& from, const std::string& to) {
  auto& graph = body(add_node(nodes, "Loop", {trips, "", from}, {to}), "body");
  for (const char* name : {"i", "go", "h"}) graph.add_input()->set_name(name);
  for (const char* name : {"go", "h_next"}) graph.add_output()->set_name(name);
  return graph;
}
void trips(ModelMaker& m, int64_t count) { m.ints("trips", {count}).clear_dims(); }

}  // namespace

std::vector<HostileModel> function_cases() {
  const auto limit = ErrorCode::ResourceExhausted;
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"functions_doubling", [] { return chain_of_functions(40, 2); }, {limit}},
      {"functions_in_a_long_chain", [] { return chain_of_functions(5000, 1); }, {limit}},
      {"functions_with_a_large_constant",
       [] {
         return of([](ModelMaker& m) {
           auto& f = function(m, 0);
           auto& value = *add_node(f, "Constant", {}, {"c"}).add_attribute();
           value.set_name("value");
           value.set_type(pb::AttributeProto::TENSOR);
           value.mutable_t()->set_data_type(pb::TensorProto::FLOAT);
           value.mutable_t()->add_dims(1 << 18);
           value.mutable_t()->set_raw_data(std::string(1 << 20, '\0'));
           add_node(f, "Add", {"a", "c"}, {"b"});
           for (int i = 0; i < 1000; ++i) m.node("f0", {"x"}, {"q" + std::to_string(i)}).set_domain("f");
         });
       },
       {limit}},
      {"function_calls_itself",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "f1", {"a"}, {"b"}, "f");
           add_node(function(m, 1), "f0", {"a"}, {"b"}, "f");
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_calls_itself_within_a_branch",
       [] {
         return of([](ModelMaker& m) {
           auto& branch = body(add_node(function(m, 0), "If", {"a"}, {"b"}), "then_branch");
           add_node(branch, "f0", {"a"}, {"r"}, "f");
           branch.add_output()->set_name("r");
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_of_branches_doubling",
       [] {
         return of([](ModelMaker& m) {
           for (int i = 0; i < 40; ++i) {
             auto& node = add_node(function(m, i), "If", {"a"}, {"b"});
             for (const char* name : {"then_branch", "else_branch"}) {
               auto& branch = body(node, name);
               add_node(branch, "f" + std::to_string(i + 1), {"a"}, {"r"}, "f");
               branch.add_output()->set_name("r");
             }
           }
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {limit}},
      {"function_twice",
       [] {
         return of([](ModelMaker& m) {
           function(m, 0);
           function(m, 0);
         });
       },
       {bad}},
      {"function_without_its_result",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "Relu", {"a"}, {"other"});
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_reads_what_stands_outside",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "MatMul", {"a", "w"}, {"b"});
           m.node("f0", {"x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"function_of_more_operands_than_it_has",
       [] {
         return of([](ModelMaker& m) {
           add_node(function(m, 0), "Relu", {"a"}, {"b"});
           m.node("f0", {"x", "x"}, {"q"}).set_domain("f");
         });
       },
       {bad}},
      {"attribute_refers_outside_of_a_function",
       [] {
         return of([](ModelMaker& m) {
           function(m, 0);
           auto& a = *m.node("LeakyRelu", {"x"}, {"q"}).add_attribute();
           a.set_name("alpha");
           a.set_ref_attr_name("slope");
         });
       },
       {bad}},
      {"function_default_that_is_no_attribute",
       [] {
         return of([](ModelMaker& m) {
           auto& f = function(m, 0);
           f.GetReflection()->MutableUnknownFields(&f)->AddLengthDelimited(11, "\x0A");
         });
       },
       {ErrorCode::Corrupted}},
  };
}

std::vector<HostileModel> loop_cases() {
  const auto limit = ErrorCode::ResourceExhausted;
  const auto bad = ErrorCode::InvalidArgument;
  return {
      {"loop_of_many_trips",
       [] {
         return of([](ModelMaker& m) {
           trips(m, std::numeric_limits<int64_t>::max());
           add_node(loop(m.graph(), "trips", "x", "q"), "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_without_an_end",
       [] {
         return of([](ModelMaker& m) { add_node(loop(m.graph(), "", "x", "q"), "Relu", {"h"}, {"h_next"}); });
       },
       {bad}},
      {"loop_whose_condition_stays_true",
       [] {
         return of([](ModelMaker& m) {
           auto& graph = loop(m.graph(), "", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           add_node(graph, "Equal", {"i", "i"}, {"same"});
           graph.mutable_output(0)->set_name("same");
         });
       },
       {limit}},
      {"loops_in_loops",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 100);
           pb::GraphProto* graph = &loop(m.graph(), "trips", "x", "q");
           for (int i = 0; i < 3; ++i) graph = &loop(*graph, "trips", "h", "h_next");
           add_node(*graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_that_doubles",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 60);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           attribute(add_node(graph, "Concat", {"h", "h"}, {"h_next"}), "axis", int64_t{0});
         });
       },
       {limit, ErrorCode::OutOfRange}},
      {"loop_of_large_constants",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 10'000);
           for (const auto& [name, value] :
                {std::pair{"r0", int64_t{0}}, {"r1", int64_t{1'000'000}}, {"r2", int64_t{1}}})
             m.ints(name, {value}).clear_dims();
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Range", {"r0", "r1", "r2"}, {"unused"});
           add_node(graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {limit}},
      {"loop_body_of_fewer_results",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           loop(m.graph(), "trips", "x", "q").mutable_output()->RemoveLast();
         });
       },
       {bad}},
      {"loop_body_reads_what_comes_of_the_loop",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           add_node(loop(m.graph(), "trips", "x", "q"), "Add", {"h", "later"}, {"h_next"});
           m.node("Relu", {"q"}, {"later"});
         });
       },
       {bad}},
      {"loop_body_defines_a_name_twice",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           add_node(graph, "Relu", {"h"}, {"h_next"});
         });
       },
       {bad}},
      {"loop_that_hands_on_another_type",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 3);
           add_node(loop(m.graph(), "trips", "x", "q"), "Add", {"h", "i"}, {"h_next"});
         });
       },
       {bad}},
      {"loop_over_a_map",
       [] {
         return of([](ModelMaker& m) {
           trips(m, 2);
           auto& graph = loop(m.graph(), "trips", "x", "q");
           add_node(graph, "Relu", {"h"}, {"h_next"});
           graph.mutable_input(2)->mutable_type()->mutable_map_type();
         });
       },
       {ErrorCode::Unsupported}},
      {"scan_of_many_elements",
       [] {
         return of([](ModelMaker& m) {
           m.input("long", {1'000'000});
           auto& node = m.node("Scan", {"long"}, {"q"});
           attribute(node, "num_scan_inputs", int64_t{1});
           auto& graph = body(node, "body");
           graph.add_input()->set_name("e");
           add_node(graph, "Relu", {"e"}, {"r"});
           graph.add_output()->set_name("r");
         });
       },
       {limit}},
      {"if_without_branches", [] { return of([](ModelMaker& m) { m.node("If", {"x"}, {"q"}); }); }, {bad}},
      {"if_of_many_numbers",
       [] {
         return of([](ModelMaker& m) {
           auto& node = m.node("If", {"x"}, {"q"});
           for (const char* name : {"then_branch", "else_branch"}) {
             auto& graph = body(node, name);
             add_node(graph, "Relu", {"x"}, {"r"});
             graph.add_output()->set_name("r");
           }
         });
       },
       {bad}},
  };
}

}  // namespace weft::onnx::testing::hostile

// Convolution and its cotangent with respect to the input, by oneDNN. Weights are plain in memory and are copied into the
// primitive's layout at each run: they change with every step.
#include "peer/backend/cpu/onednn.h"

namespace weft::peer::cpu {
namespace {

using dag::OpKind;
using dnnl::algorithm;
using dnnl::prop_kind;

std::string name_of(const char* implementation, const dag::Value& value) {
  return std::string("onednn conv ") + implementation + " " + std::string(to_string(value.layout));
}

KernelResult make_forward(const KernelRequest& request) {
  const ConvGeometry g(request.attributes());
  const dag::Value &x = request.in(0), &w = request.in(1), &y = request.out(0);
  const dnnl::engine engine = cpu_engine();
  const auto weights = g.weight_dims(w.spec.shape);
  const bool has_bias = request.has(2);
  const Md bias = has_bias ? plain_md(request.in_shape(2)) : Md();
  const auto attributes = user_scratchpad();
  const auto describe = [&] {
    if (has_bias)
      return dnnl::convolution_forward::desc(prop_kind::forward_training, algorithm::convolution_direct, wanted_md(x),
                                             any_md(weights), bias, wanted_md(y), g.strides, g.dilations, g.pads_begin,
                                             g.pads_end);
    return dnnl::convolution_forward::desc(prop_kind::forward_training, algorithm::convolution_direct, wanted_md(x),
                                           any_md(weights), wanted_md(y), g.strides, g.dilations, g.pads_begin, g.pads_end);
  };
  const dnnl::convolution_forward::primitive_desc pd(describe(), attributes, engine);
  auto primitive = std::make_shared<Primitive>(engine);
  primitive->add_input(DNNL_ARG_SRC, value_md(x), pd.src_desc());
  primitive->add_input(DNNL_ARG_WEIGHTS, plain_md(weights), pd.weights_desc());
  if (has_bias) primitive->add_input(DNNL_ARG_BIAS, bias, pd.bias_desc());
  primitive->add_output(DNNL_ARG_DST, value_md(y), pd.dst_desc());
  primitive->set(dnnl::convolution_forward(pd), pd.scratchpad_desc());
  const int source = request.input_slot(0), kernel = request.input_slot(1), offset = request.input_slot(2);
  const int target = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    return guarded_run([&] {
      std::vector<void*> data{const_cast<float*>(call.in<float>(source)), const_cast<float*>(call.in<float>(kernel))};
      if (has_bias) data.push_back(const_cast<float*>(call.in<float>(offset)));
      data.push_back(call.out<float>(target));
      primitive->run(data, call.workspace);
    });
  };
  return request.make(name_of(pd.impl_info_str(), y), run, primitive->bytes());
}

KernelResult make_grad_input(const KernelRequest& request) {
  const ConvGeometry g(request.attributes());
  const dag::Value &dy = request.in(0), &w = request.in(1), &dx = request.out(0);
  const dnnl::engine engine = cpu_engine();
  const auto weights = g.weight_dims(w.spec.shape);
  const auto attributes = user_scratchpad();
  const dnnl::convolution_forward::primitive_desc hint(
      dnnl::convolution_forward::desc(prop_kind::forward_training, algorithm::convolution_direct, wanted_md(dx),
                                      any_md(weights), wanted_md(dy), g.strides, g.dilations, g.pads_begin, g.pads_end),
      attributes, engine);
  const dnnl::convolution_backward_data::primitive_desc pd(
      dnnl::convolution_backward_data::desc(algorithm::convolution_direct, wanted_md(dx), any_md(weights), wanted_md(dy),
                                            g.strides, g.dilations, g.pads_begin, g.pads_end),
      attributes, engine, hint);
  auto primitive = std::make_shared<Primitive>(engine);
  primitive->add_input(DNNL_ARG_DIFF_DST, value_md(dy), pd.diff_dst_desc());
  primitive->add_input(DNNL_ARG_WEIGHTS, plain_md(weights), pd.weights_desc());
  primitive->add_output(DNNL_ARG_DIFF_SRC, value_md(dx), pd.diff_src_desc());
  primitive->set(dnnl::convolution_backward_data(pd), pd.scratchpad_desc());
  const int source = request.input_slot(0), kernel = request.input_slot(1), target = request.output_slot(0);
  const auto run = [=](const Call& call) -> Status {
    return guarded_run([&] {
      void* const data[] = {const_cast<float*>(call.in<float>(source)), const_cast<float*>(call.in<float>(kernel)),
                            call.out<float>(target)};
      primitive->run(data, call.workspace);
    });
  };
  return request.make(name_of(pd.impl_info_str(), dx), run, primitive->bytes());
}

}  // namespace

KernelResult make_convolution(const KernelRequest& request) {
  if (!request.is_f32(request.in(0))) return request.decline();
  return guarded(request, [&]() -> KernelResult {
    switch (request.op.kind) {
      case OpKind::Conv: return make_forward(request);
      case OpKind::ConvGradInput: return make_grad_input(request);
      case OpKind::ConvGradWeight: return make_conv_grad_weight(request);
      default: return request.decline();
    }
  });
}

}  // namespace weft::peer::cpu

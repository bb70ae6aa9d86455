#include "tests/onnx/operator_cases.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <set>
#include <sstream>

#include "base/check.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/lower.h"
#include "dag/onnx/export.h"
#include "dag/onnx/inspect.h"
#include "dag/onnx/tensor_proto.h"
#include "dag/passes/canonicalise.h"
#include "tests/fuzz/import_limits.h"

namespace weft::onnx::testing {
namespace {

// A line: operator, operator set, operands, "->", results (y, or - for one left out), attributes. An operand
// is absent (-), a type and shape, or these with values, which the import then knows. Operand 0, integers and
// truth values are inputs of the model; floats behind them are parameters.
constexpr char kLines[] = R"(
Abs 13 f32[3,4,5] -> y
Acos 7 f32[3] -> y
Acosh 9 f32[3] -> y
Add 14 f32[3,4,5] f32[5] -> y
AffineGrid 20 f32[2,2,3] i64[4]=2,3,4,5 -> y align_corners=1
AffineGrid 20 f32[2,3,4] i64[5]=2,3,2,4,5 -> y
And 7 bool[3,4] bool[3,4] -> y
ArgMax 13 f32[2,2] -> y axis=1 keepdims=1 select_last_index=1
ArgMin 13 f32[2,2] -> y axis=1 keepdims=1 select_last_index=1
Asin 7 f32[3] -> y
Asinh 9 f32[3] -> y
Atan 7 f32[3] -> y
Atanh 9 f32[3] -> y
Attention 23 f32[1,2,4,8] f32[1,2,6,8] f32[1,2,6,8] bool[4,9] f32[1,2,3,8] f32[1,2,3,8] -> yyyy is_causal=1 softcap=2.0 scale=0.5
Attention 24 f32[1,4,16] f32[1,6,8] f32[1,6,8] - - - i64[1]=5 -> y q_num_heads=4 kv_num_heads=2 qk_matmul_output_mode=1
AveragePool 11 f32[1,1,4,4] -> y ceil_mode=1 kernel_shape=[3,3] strides=[2,2]
AveragePool 11 f32[1,1,5,5] -> y auto_pad="SAME_UPPER" kernel_shape=[3,3] strides=[2,2]
AveragePool 11 f32[1,1,5,5] -> y count_include_pad=1 kernel_shape=[5,5] pads=[2,2,2,2]
BatchNormalization 15 f32[2,3,4,5] f32[3] f32[3] f32[3] f32[3] -> yyy epsilon=0.01 training_mode=1
Bernoulli 15 f32[10] -> y dtype=11
Bernoulli 15 f32[10] -> y seed=0.0
BitShift 11 u16[3] u16[3]=1,2,3 -> y direction="LEFT"
BitwiseAnd 18 i32[3] i32[3]=1,2,3 -> y
BitwiseNot 18 i32[3] -> y
BitwiseOr 18 i32[3] i32[3]=1,2,3 -> y
BitwiseXor 18 i32[3] i32[3]=1,2,3 -> y
BitCast 26 i32[2]=1,1065353216 -> y to=1
BlackmanWindow 17 i32[]=10 -> y periodic=0
Cast 13 u16[3,4] -> y to=1
CastLike 15 u16[3,4] f32[1] -> y
CausalConvWithState 27 f32[2,3,5] f32[3,1,4] f32[3] f32[2,3,3] -> yy activation="silu"
Ceil 13 f32[2] -> y
Celu 12 f32[3,3,3,1] -> y alpha=2.0
CenterCropPad 18 f32[3,5,4] i64[2]=4,6 -> y axes=[1,2]
Clip 13 f32[3] f32[]=-1.0 f32[]=1.0 -> y
Col2Im 18 f32[1,5,5] i64[2]=5,5 i64[2]=1,5 -> y
Col2Im 18 f32[1,8,4] i64[2]=5,5 i64[2]=2,2 -> y dilations=[1,1] pads=[0,0,0,0] strides=[2,2]
Compress 11 f32[3,2] bool[2]=0,1 -> y axis=1
Concat 13 f32[2] f32[2] -> y axis=0
Constant 13 -> y value=f32[2]:0.5,1.5
Constant 13 -> y value_ints=[1,2]
ConstantOfShape 9 i64[1]=0 -> y value=i32[1]:0
Conv 11 f32[1,1,5,5] f32[1,1,3,3] -> y auto_pad="SAME_LOWER" kernel_shape=[3,3] strides=[2,2]
Conv 11 f32[1,1,7,5] f32[1,1,3,3] -> y kernel_shape=[3,3] pads=[1,0,1,0] strides=[2,2]
ConvInteger 10 u8[1,1,3,3] u8[1,1,2,2]=1,1,1,1 u8[]=1 -> y pads=[1,1,1,1]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y auto_pad="SAME_UPPER" strides=[2,2]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y kernel_shape=[3,3] output_padding=[1,1] output_shape=[10,8] strides=[3,2]
ConvTranspose 11 f32[1,1,3,3] f32[1,2,3,3] -> y pads=[1,2,1,2] strides=[3,2]
Cos 7 f32[3] -> y
Cosh 9 f32[3] -> y
CumProd 26 f32[2,5] i64[]=1 -> y exclusive=1 reverse=1
CumSum 14 f64[5] i32[]=0 -> y exclusive=1 reverse=1
DFT 17 f32[1,10,10,2] -> y axis=1 inverse=1
DeformConv 19 f32[1,1,3,3] f32[1,1,2,2] f32[1,8,2,2] f32[1] f32[1,4,2,2] -> y kernel_shape=[2,2] pads=[0,0,0,0]
DepthToSpace 13 f32[1,8,2,3] -> y blocksize=2 mode="CRD"
DequantizeLinear 13 u8[4] f32[]=2.0 u8[]=128 -> y
DequantizeLinear 21 i8[4,6] f32[4,2] i8[4,2] -> y axis=1 block_size=3
Det 11 f32[2,2] -> y
Div 14 f32[2] f32[2] -> y
Dropout 10 f32[3,4] -> yy ratio=0.5
Dropout 11 f32[3,4,5] -> y ratio=0.2000
Dropout 13 f32[3,4,5] f32[]=0.5 bool[]=1 -> yy seed=0
DynamicQuantizeLinear 11 f32[6] -> yyy
Einsum 12 f64[5] f64[5] -> y equation="i,i"
Elu 6 f32[3] -> y alpha=2.0
Equal 13 i32[3,4,5] i32[5]=-6,-3,-8,-17,1 -> y
Erf 13 f32[3] -> y
Exp 13 f32[3] -> y
Expand 13 f32[3,1] i64[2]=3,4 -> y
EyeLike 9 i32[4,5] -> y dtype=1 k=1
Flatten 13 f32[2,3,4,5] -> y axis=0
Floor 13 f32[3] -> y
GRU 14 f32[1,3,3] f32[1,9,3] f32[1,9,3] f32[1,18] -> yy hidden_size=3
GRU 14 f32[3,1,2] f32[1,18,2] f32[1,18,6] -> yy hidden_size=6 layout=1
GRU 7 f32[4,2,3] f32[2,9,3] f32[2,9,3] f32[2,18] i32[2]=4,2 f32[2,2,3] -> yy hidden_size=3 direction="bidirectional" linear_before_reset=1 activations=["Sigmoid","Tanh","Sigmoid","Tanh"] clip=3.0
Gather 13 f32[3,3] i64[1,2]=0,2 -> y axis=1
GatherElements 13 f32[2,2] i64[2,2]=0,0,1,0 -> y axis=1
GatherND 13 i32[2,2,2] i64[2,1]=1,0 -> y batch_dims=1
Gelu 20 f32[3,4] -> y approximate="tanh"
Gemm 13 f32[4,3] f32[5,4] f32[1,5] -> y alpha=0.25 beta=0.3499 transA=1 transB=1
GlobalAveragePool 1 f32[1,1,3,3] -> y
GlobalLpPool 7 f32[1,2,3,3] -> y p=2
GlobalMaxPool 1 f32[1,1,3,3] -> y
Greater 13 f32[3,4,5] f32[5] -> y
GreaterOrEqual 16 f32[3,4,5] f32[5] -> y
GridSample 16 f32[1,1,4,4] f32[1,6,6,2] -> y align_corners=0 mode="bilinear" padding_mode="zeros"
GridSample 20 f32[1,1,3,4,4] f32[1,2,3,3,3] -> y align_corners=1 mode="nearest" padding_mode="border"
GridSample 20 f32[1,1,4,4] f32[1,3,3,2] -> y align_corners=0 mode="cubic" padding_mode="reflection"
GroupNormalization 18 f32[2,4,3] f32[2] f32[2] -> y num_groups=2
GroupNormalization 21 f32[2,4,3] f32[4] f32[4] -> y epsilon=0.01 num_groups=2 stash_type=1
HammingWindow 17 i32[]=10 -> y periodic=0
HannWindow 17 i32[]=10 -> y periodic=0
HardSigmoid 6 f32[3] -> y alpha=0.5 beta=0.6000
HardSwish 14 f32[3,4,5] -> y
Hardmax 13 f32[3,4,5] -> y axis=0
Identity 16 f32[1,1,2,2] -> y
InstanceNormalization 6 f32[2,3,4,5] f32[3] f32[3] -> y epsilon=0.01
IsInf 10 f32[6] -> y detect_negative=0
IsInf 10 f32[6] -> y detect_positive=0
IsNaN 13 f32[4] -> y
LRN 13 f32[5,5,5,5] -> y alpha=0.0001 beta=0.5 bias=2.0 size=3
LSTM 14 f32[1,2,4] f32[1,12,4] f32[1,12,3] f32[1,24] i32[2]=1,1 f32[1,2,3] f32[1,2,3] f32[1,9] -> yy hidden_size=3
LSTM 14 f32[3,1,2] f32[1,28,2] f32[1,28,7] -> yy hidden_size=7 layout=1
LSTM 7 f32[4,2,3] f32[2,12,3] f32[2,12,3] f32[2,24] i32[2]=4,2 f32[2,2,3] f32[2,2,3] f32[2,9] -> yyy hidden_size=3 direction="bidirectional" input_forget=1 activation_alpha=[0.5] activation_beta=[0.5] activations=["HardSigmoid","Tanh","Tanh","Sigmoid","Tanh","Tanh"]
LayerNormalization 17 f32[2,3,5] f32[5] f32[5] -> yyy axis=2 epsilon=0.1000
LeakyRelu 16 f32[3] -> y alpha=0.1000
Less 13 f32[3,4,5] f32[5] -> y
LessOrEqual 16 f32[3,4,5] f32[5] -> y
LinearAttention 27 f32[2,3,8] f32[2,3,4] f32[2,3,6] f32[2,2,2,3] f32[2,3,2] f32[2,3,2] -> yy kv_num_heads=2 q_num_heads=4 scale=0.5
LinearAttention 27 f32[1,2,6] f32[1,2,6] f32[1,2,4] - f32[1,2,6] -> yy chunk_size=64 kv_num_heads=2 q_num_heads=2 update_rule="gated"
Log 13 f32[2] -> y
LogSoftmax 13 f32[3,4,5] -> y axis=0
LpNormalization 7 f32[2,3] -> y axis=1 p=2
LpPool 18 f32[1,2,5,5] -> y kernel_shape=[2,2] pads=[1,0,1,0] p=2 strides=[2,2] dilations=[1,1] ceil_mode=1
MatMul 13 f32[3,4] f32[4,3] -> y
MatMulInteger 10 u8[4,3] u8[3,2]=1,4,2,5,3,6 u8[1]=12 u8[1]=0 -> y
Max 13 f32[3] f32[3] f32[3] -> y
MaxPool 12 f32[1,1,4,4] -> y ceil_mode=1 kernel_shape=[3,3] strides=[2,2]
MaxPool 12 f32[1,1,4,4] -> y dilations=[2,2] kernel_shape=[2,2] strides=[1,1]
MaxPool 12 f32[1,1,5,5] -> yy kernel_shape=[2,2] storage_order=1 strides=[2,2]
MaxUnpool 11 f32[1,1,2,2] i64[1,1,2,2]=5,7,13,15 i64[4]=1,1,5,5 -> y kernel_shape=[2,2] strides=[2,2]
Mean 13 f32[3] f32[3] f32[3] -> y
MeanVarianceNormalization 13 f32[3,3,3,1] -> y
MelWeightMatrix 17 i32[]=8 i32[]=64 i32[]=8192 f32[]=0.0 f32[]=4096.0 -> y
Min 13 f32[3] f32[3] f32[3] -> y
Mish 18 f32[3,4] -> y
Mod 13 i64[6] i64[6]=2,-3,8,-2,3,5 -> y fmod=1
Mul 14 f32[3] f32[3] -> y
Multinomial 7 f32[2,5] -> y dtype=6 sample_size=3 seed=1.0
Neg 13 f32[2] -> y
NegativeLogLikelihoodLoss 13 f32[3,5] i64[3]=10,4,3 f32[5] -> y ignore_index=10 reduction="sum"
NonMaxSuppression 11 f32[1,6,4]=0.5,0.5,1.0,1.0,0.5,0.6000,1.0,1.0,0.5,0.4000,1.0,1.0,0.5,10.5,1.0,1.0,0.5,10.6,1.0,1.0,0.5,100.5,1.0,1.0 f32[1,1,6]=0.9,0.75,0.6,0.95,0.5,0.3 i64[1]=3 f32[1]=0.5 f32[1]=0.0 -> y center_point_box=1
NonZero 13 bool[2,2]=1,0,1,1 -> y
Not 1 bool[3,4] -> y
OneHot 11 i64[3] i64[1]=4 f32[2]=0.5,1.5 -> y axis=1
OneHot 11 i64[3]=0,-7,-8 f32[]=10.0 f32[2] -> y axis=1
Or 7 bool[3,4] bool[3,4] -> y
PRelu 16 f32[3,4,5] f32[5] -> y
Pad 13 f32[1,3,4,5] i64[8]=0,0,1,3,0,0,2,4 f32[]=1.2000 -> y mode="constant"
Pad 19 f32[1,3,4] i64[4]=1,0,2,1 - i64[2]=1,2 -> y mode="wrap"
Pow 15 f32[3] f32[]=2.0 -> y
QLinearConv 10 u8[1,1,7,7] f32[]=0.0036 u8[]=132 u8[1,1,1,1]=0 f32[1] u8[1]=255 f32[]=0.0016 u8[]=123 -> y
QLinearMatMul 10 u8[2,4] f32[1] u8[1]=113 u8[4,3]=152,51,244,60,26,255,0,127,246,127,254,247 f32[1] u8[1]=114 f32[1] u8[1]=118 -> y
QuantizeLinear 13 f32[6] f32[]=2.0 u8[]=128 -> y
QuantizeLinear 21 f32[4,6] f32[4,2] i8[4,2] -> y axis=1 block_size=3 output_dtype=3 precision=1 saturate=1
RMSNormalization 23 f32[2,3,4] f32[4] -> y axis=-1 epsilon=0.01 stash_type=1
RNN 14 f32[1,3,3] f32[1,5,3] f32[1,5,5] f32[1,10] -> yy hidden_size=5
RNN 14 f32[3,1,2] f32[1,4,2] f32[1,4,4] -> yy hidden_size=4 layout=1
RNN 7 f32[4,2,3] f32[2,3,3] f32[2,3,3] f32[2,6] i32[2]=4,2 f32[2,2,3] -> yy hidden_size=3 direction="bidirectional" activations=["LeakyRelu","Affine"] activation_alpha=[0.5,0.5] activation_beta=[0.1]
RandomNormal 7 -> y dtype=1 mean=0.5 scale=2.0 seed=1.0 shape=[2,3]
RandomNormalLike 7 f32[2,3] -> y dtype=1 mean=0.5 scale=2.0 seed=1.0
RandomUniform 7 -> y dtype=1 high=2.0 low=-1.0 seed=1.0 shape=[2,3]
RandomUniformLike 7 f32[2,3] -> y dtype=1 high=2.0 low=-1.0 seed=1.0
Range 11 f32[]=1.0 f32[]=5.0 f32[]=2.0 -> y
Reciprocal 13 f32[2] -> y
ReduceL1 13 f32[3,2,2] -> y axes=[2] keepdims=0
ReduceL2 13 f32[3,2,2] -> y axes=[2] keepdims=0
ReduceLogSum 6 f32[3,4,5] -> y axes=[2,1] keepdims=0
ReduceLogSumExp 13 f64[3,2,2] -> y axes=[1] keepdims=0
ReduceMax 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceMax 18 f32[3,2,2] i64[1]=1 -> y keepdims=0 noop_with_empty_axes=1
ReduceMean 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceMean 18 f32[3,2,2] i64[1]=1 -> y keepdims=0 noop_with_empty_axes=1
ReduceMin 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceProd 13 f32[3,2,2] -> y axes=[1] keepdims=0
ReduceSum 13 f32[3,2,2] i64[0]= -> y keepdims=1 noop_with_empty_axes=1
ReduceSumSquare 13 f32[3,2,2] -> y axes=[1] keepdims=0
Relu 14 f32[3,4,5] -> y
Reshape 14 f32[0,3,4] i64[3]=3,4,0 -> y allowzero=1
Resize 10 f32[1,1,4,4] f32[4]=1.0,1.0,2.0,0.5 -> y mode="nearest"
Resize 13 f32[1,1,4,4] - - i64[4]=1,1,8,8 -> y coordinate_transformation_mode="half_pixel" mode="nearest" nearest_mode="ceil"
Resize 13 f32[1,1,4,4] - f32[4]=1.0,1.0,0.8,0.8 -> y cubic_coeff_a=-0.5 exclude_outside=1 mode="cubic"
Resize 13 f32[1,1,4,4] f32[8]=0.0,0.0,0.4,0.6,1.0,1.0,0.6,0.8 - i64[4]=1,1,3,3 -> y coordinate_transformation_mode="tf_crop_and_resize" extrapolation_value=10.0 mode="linear"
Resize 19 f32[1,1,4,4] - - i64[2]=8,6 -> y axes=[2,3] antialias=1 mode="linear" keep_aspect_ratio_policy="not_larger"
ReverseSequence 10 f32[4,4] i64[4]=1,2,3,4 -> y batch_axis=0 time_axis=1
RoiAlign 16 f32[1,1,10,10] f32[3,4] i64[3]=0,0,0 -> y coordinate_transformation_mode="output_half_pixel" output_height=5 output_width=5 sampling_ratio=2 spatial_scale=1.0
RotaryEmbedding 23 f32[2,2,3,4] f32[5,2] f32[5,2] i64[2,3]=0,1,2,0,1,2 -> y interleaved=1
RotaryEmbedding 23 f32[2,3,8] f32[2,3,1] f32[2,3,1] -> y num_heads=2 rotary_embedding_dim=2
Round 11 f32[15] -> y
STFT 17 f32[1,128,1] i64[]=8 - i64[]=16 -> y
STFT 17 f32[1,128,1] i64[]=8 f32[16] -> y
Scatter 10 f32[1,5] i64[1,2]=1,3 f32[1,2] -> y axis=1
ScatterElements 16 f32[1,5] i64[1,2]=1,1 f32[1,2] -> y axis=1 reduction="add"
ScatterND 16 f32[4,4,4] i64[2,1]=0,0 f32[2,4,4] -> y reduction="add"
Selu 6 f32[3] -> y alpha=2.0 gamma=3.0
Shape 15 f32[3,4,5] -> y end=2 start=1
Shrink 9 f32[5] -> y bias=1.5 lambd=1.5
Sigmoid 13 f32[3] -> y
Sign 13 f32[11] -> y
SimplifiedLayerNormalization 17 f32[2,4] f32[4] -> yy axis=-1 epsilon=0.01
Sin 7 f32[3] -> y
Sinh 9 f32[3] -> y
Size 13 f32[2,3] -> y
Slice 13 f32[20,10,5] i64[1]=1 i64[1]=1000 i64[1]=1 i64[1]=1 -> y
Slice 9 f32[4,5] -> y axes=[0,1] ends=[3,4] starts=[1,0]
Softmax 11 f32[3,4,5] -> y axis=1
Softmax 13 f32[3,4,5] -> y axis=0
SoftmaxCrossEntropyLoss 13 f32[3,5,2] i64[3,2] f32[5] -> yy ignore_index=1 reduction="none"
SoftmaxCrossEntropyLoss 13 f32[3,5] i64[3]=10,4,3 f32[5] -> yy ignore_index=10 reduction="sum"
Softplus 1 f32[3] -> y
Softsign 1 f32[3] -> y
SpaceToDepth 13 f32[1,1,4,6] -> y blocksize=2
SpaceToDepth 13 f32[1,2,4,4] -> y blocksize=2
Split 13 f32[0] i64[3]=0,0,0 -> yyy
Split 13 f32[6] -> yyy axis=0
Split 18 f32[7,2] -> yyy axis=0 num_outputs=3
Sqrt 13 f32[3] -> y
Squeeze 13 f32[1,3,1,5] i64[1]=-2 -> y
Sub 14 f32[3] f32[3] -> y
Sum 13 f32[3] f32[3] f32[3] -> y
Swish 24 f32[3,4] -> y alpha=1.5
Tan 7 f32[3] -> y
Tanh 13 f32[3] -> y
TensorScatter 24 f32[2,4,3] f32[2,1,3] i64[2]=1,2 -> y axis=1 mode="circular"
ThresholdedRelu 10 f32[5] -> y alpha=2.0
Tile 13 f32[2,2] i64[2]=2,2 -> y
TopK 11 f32[3,4] i64[1]=3 -> yy axis=1 largest=0 sorted=1
TopK 9 f32[3,4] -> yy axis=1 k=2
Transpose 13 f32[2,3,4] -> y perm=[0,1,2]
Trilu 14 i64[3,0,5] i64[]=6 -> y upper=0
Unique 11 f32[3,3]=1.0,0.0,0.0,1.0,0.0,0.0,2.0,3.0,4.0 -> yyyy axis=0 sorted=1
Unsqueeze 11 f32[3,4,5] -> y axes=[3]
Unsqueeze 13 f32[1,3,1,5] i64[1]=-2 -> y
Upsample 7 f32[1,1,2,2] -> y mode="nearest" scales=[1.0,1.0,2.0,2.0]
Upsample 9 f32[1,1,2,2] f32[4]=1.0,1.0,2.0,3.0 -> y mode="nearest"
Where 16 bool[2,2] f32[2,2] f32[2,2] -> y
Xor 7 bool[3,4] bool[3,4] -> y
com.microsoft.Attention 17 f32[2,3,8] f32[8,24] f32[24] i32[2,3] - f32[1,2,3,3] -> y num_heads=2 unidirectional=1 scale=0.5 mask_filter_value=-100.0
com.microsoft.BiasAdd 17 f32[1,4,2] f32[2] f32[1,4,2] -> y
com.microsoft.BiasGelu 17 f32[2,4] f32[4] -> y
com.microsoft.EmbedLayerNormalization 17 i32[2,3] i32[2,3] f32[10,4] f32[5,4] f32[2,4] f32[4] f32[4] - i32[2,3] -> y-y epsilon=0.01
com.microsoft.FastGelu 17 f32[2,4] f32[4] -> y
com.microsoft.FusedConv 17 f32[1,1,5,5] f32[2,1,3,3] f32[2] f32[1,2,3,3] -> y activation="LeakyRelu" activation_params=[0.1]
com.microsoft.FusedGemm 17 f32[2,3] f32[3,4] f32[4] -> y activation="LeakyRelu" activation_alpha=0.1
com.microsoft.FusedMatMul 17 f32[3,2] f32[3,4] -> y alpha=0.5 transA=1
com.microsoft.Gelu 17 f32[2,4] -> y
com.microsoft.GroupQueryAttention 17 f32[1,3,16] - - - - i32[1]=2 i32[]=3 -> y kv_num_heads=1 num_heads=2
com.microsoft.GroupQueryAttention 17 f32[1,3,8] f32[1,3,4] f32[1,3,4] - - i32[1]=2 i32[]=3 f32[5,2] f32[5,2] -> yyy do_rotary=1 kv_num_heads=1 num_heads=2 rotary_interleaved=1 softcap=2.0
com.microsoft.LayerNormalization 17 f32[2,4] f32[4] f32[4] -> yyy axis=-1 epsilon=0.01
com.microsoft.MultiHeadAttention 17 f32[2,3,2,3,4] -> y num_heads=2 unidirectional=1
com.microsoft.MultiHeadAttention 17 f32[2,3,8] f32[2,4,8] f32[2,4,8] f32[24] i32[2,4] f32[1,2,3,4] -> yyy num_heads=2
com.microsoft.QuickGelu 17 f32[2,4] -> y alpha=1.5
com.microsoft.RotaryEmbedding 17 f32[1,3,8] i64[1]=0 f32[5,2] f32[5,2] -> y interleaved=1
com.microsoft.SimplifiedLayerNormalization 17 f32[2,4] f32[4] -> yy axis=-1 epsilon=0.01
com.microsoft.SkipLayerNormalization 17 f32[2,3,4] f32[2,3,4] f32[4] f32[4] f32[4] -> yyyy epsilon=0.01
com.microsoft.SkipSimplifiedLayerNormalization 17 f32[2,3,4] f32[2,3,4] f32[4] f32[4] -> y-yy epsilon=0.01
com.microsoft.TransposeMatMul 17 f32[3,2] f32[3,4] -> y alpha=0.5 transA=1
)";

using Words = std::vector<std::string>;

Words split(const std::string& text, char by) {
  Words words;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, by);)
    if (!word.empty() || by != ' ') words.push_back(word);
  return words;
}

dag::TensorSpec read_spec(const std::string& text) {
  const size_t open = text.find('[');
  dag::TensorSpec spec{dag::parse_dtype(text.substr(0, open)).value(), {}};
  for (const auto& dim : split(text.substr(open + 1, text.find(']') - open - 1), ','))
    spec.shape.push_back(std::stoll(dim));
  return spec;
}

std::vector<double> read_numbers(const std::string& text) {
  std::vector<double> numbers;
  for (const auto& word : split(text, ',')) numbers.push_back(std::stod(word));
  return numbers;
}

void set_tensor(pb::TensorProto& proto, const dag::TensorSpec& spec, const std::vector<double>& values) {
  const dag::Tensor tensor = dag::from_doubles(spec, values);
  proto.set_data_type(dtype_to_onnx(spec.dtype));
  for (const int64_t dim : spec.shape) proto.add_dims(dim);
  proto.set_raw_data(tensor.bytes().data(), tensor.bytes().size());
}

void set_list(pb::AttributeProto& attribute, const std::string& text) {
  const Words words = split(text, ',');
  if (text.find('"') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::STRINGS);
    for (const auto& word : words) attribute.add_strings(word.substr(1, word.size() - 2));
  } else if (text.find('.') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::FLOATS);
    for (const auto& word : words) attribute.add_floats(std::stof(word));
  } else {
    attribute.set_type(pb::AttributeProto::INTS);
    for (const auto& word : words) attribute.add_ints(std::stoll(word));
  }
}

void add_attribute(pb::NodeProto& node, const std::string& text) {
  const size_t is = text.find('=');
  const std::string value = text.substr(is + 1);
  auto& attribute = *node.add_attribute();
  attribute.set_name(text.substr(0, is));
  if (value.front() == '[') {
    set_list(attribute, value.substr(1, value.size() - 2));
  } else if (value.front() == '"') {
    attribute.set_type(pb::AttributeProto::STRING);
    attribute.set_s(value.substr(1, value.size() - 2));
  } else if (const size_t colon = value.find(':'); colon != std::string::npos) {
    attribute.set_type(pb::AttributeProto::TENSOR);
    set_tensor(*attribute.mutable_t(), read_spec(value), read_numbers(value.substr(colon + 1)));
  } else if (value.find('.') != std::string::npos) {
    attribute.set_type(pb::AttributeProto::FLOAT);
    attribute.set_f(std::stof(value));
  } else {
    attribute.set_type(pb::AttributeProto::INT);
    attribute.set_i(std::stoll(value));
  }
}

void add_input(pb::GraphProto& graph, const std::string& name, const dag::TensorSpec& spec) {
  auto& info = *graph.add_input();
  info.set_name(name);
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(dtype_to_onnx(spec.dtype));
  tensor.mutable_shape();
  for (const int64_t dim : spec.shape) tensor.mutable_shape()->add_dim()->set_dim_value(dim);
}

void add_operand(pb::GraphProto& graph, const std::string& name, const std::string& text, bool is_first) {
  const dag::TensorSpec spec = read_spec(text);
  const size_t is = text.find('=');
  if (is == std::string::npos && (is_first || !is_float(spec.dtype))) return add_input(graph, name, spec);
  auto& tensor = *graph.add_initializer();
  tensor.set_name(name);
  std::vector<double> values;
  for (int64_t i = 0; i < spec.element_count(); ++i)
    values.push_back(0.25 + 0.125 * static_cast<double>(i % 7));
  if (is != std::string::npos) values = read_numbers(text.substr(is + 1));
  set_tensor(tensor, spec, values);
}

pb::ModelProto new_model(int64_t opset) {
  pb::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(opset);
  model.mutable_graph()->set_name("g");
  return model;
}

pb::NodeProto& add_node(pb::GraphProto& graph, const std::string& op, const Words& inputs,
                        const Words& outputs) {
  auto& node = *graph.add_node();
  node.set_op_type(op);
  node.set_name(op);
  for (const auto& name : inputs) node.add_input(name);
  for (const auto& name : outputs) node.add_output(name);
  return node;
}

OperatorCase read_line(const std::string& line) {
  const Words words = split(line, ' ');
  OperatorCase made{words[0], line, new_model(std::stoll(words[1]))};
  auto& graph = *made.model.mutable_graph();
  const auto arrow = std::find(words.begin(), words.end(), "->");
  Words inputs, outputs;
  for (auto word = words.begin() + 2; word != arrow; ++word) {
    inputs.push_back(*word == "-" ? "" : "in" + std::to_string(inputs.size()));
    if (*word != "-") add_operand(graph, inputs.back(), *word, inputs.size() == 1);
  }
  for (const char listed : arrow[1]) {
    outputs.push_back(listed == '-' ? "" : "out" + std::to_string(outputs.size()));
    if (listed != '-') graph.add_output()->set_name(outputs.back());
  }
  const size_t dot = made.op.rfind('.');
  auto& node = add_node(graph, made.op.substr(dot == std::string::npos ? 0 : dot + 1), inputs, outputs);
  if (dot != std::string::npos) node.set_domain(made.op.substr(0, dot));
  for (auto word = arrow + 2; word != words.end(); ++word) add_attribute(node, *word);
  return made;
}

// ---- what needs more than one node

OperatorCase with_graph(const std::string& op, const std::string& what) {
  OperatorCase made{op, op + ": " + what, new_model(17)};
  auto& graph = *made.model.mutable_graph();
  add_input(graph, "x", {dag::DType::F32, {2, 3}});
  graph.add_output()->set_name("y");
  return made;
}

void add_known(pb::GraphProto& graph, const std::string& name, const dag::TensorSpec& spec,
               const std::vector<double>& values) {
  auto& tensor = *graph.add_initializer();
  tensor.set_name(name);
  set_tensor(tensor, spec, values);
}

pb::GraphProto& add_body(pb::NodeProto& node, const std::string& name) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::GRAPH);
  attribute.mutable_g()->set_name(name);
  return *attribute.mutable_g();
}

void add_port(google::protobuf::RepeatedPtrField<pb::ValueInfoProto>& ports, const std::string& name) {
  ports.Add()->set_name(name);
}

OperatorCase if_case(bool known) {
  auto made = with_graph("If", known ? "a known condition" : "both branches");
  auto& graph = *made.model.mutable_graph();
  if (known) {
    add_known(graph, "c", {dag::DType::Bool, {}}, {1});
  } else {
    add_input(graph, "c", {dag::DType::Bool, {}});
  }
  auto& node = add_node(graph, "If", {"c"}, {"y"});
  for (const char* branch : {"then_branch", "else_branch"}) {
    auto& body = add_body(node, branch);
    const std::string result = std::string(branch) + "_y";
    add_node(body, branch[0] == 't' ? "Relu" : "Neg", {"x"}, {result});
    add_port(*body.mutable_output(), result);
  }
  return made;
}

OperatorCase loop_case() {
  auto made = with_graph("Loop", "a state and a scanned result");
  auto& graph = *made.model.mutable_graph();
  graph.add_output()->set_name("all");
  add_known(graph, "trips", {dag::DType::I64, {}}, {3});
  add_known(graph, "go", {dag::DType::Bool, {}}, {1});
  auto& node = add_node(graph, "Loop", {"trips", "go", "x"}, {"y", "all"});
  auto& body = add_body(node, "body");
  for (const char* name : {"i", "on", "s"}) add_port(*body.mutable_input(), name);
  add_node(body, "Identity", {"on"}, {"still"});
  add_node(body, "Mul", {"s", "s"}, {"next"});
  add_node(body, "Relu", {"next"}, {"part"});
  for (const char* name : {"still", "next", "part"}) add_port(*body.mutable_output(), name);
  return made;
}

OperatorCase scan_case() {
  auto made = with_graph("Scan", "a state, a sequence and a scanned result");
  auto& graph = *made.model.mutable_graph();
  graph.add_output()->set_name("all");
  add_known(graph, "start", {dag::DType::F32, {3}}, {0.5, 1, 1.5});
  auto& node = add_node(graph, "Scan", {"start", "x"}, {"y", "all"});
  add_attribute(node, "num_scan_inputs=1");
  add_attribute(node, "scan_input_axes=[0]");
  add_attribute(node, "scan_input_directions=[1]");
  add_attribute(node, "scan_output_axes=[1]");
  add_attribute(node, "scan_output_directions=[1]");
  auto& body = add_body(node, "body");
  for (const char* name : {"s", "e"}) add_port(*body.mutable_input(), name);
  add_node(body, "Add", {"s", "e"}, {"next"});
  add_node(body, "Relu", {"next"}, {"part"});
  for (const char* name : {"next", "part"}) add_port(*body.mutable_output(), name);
  return made;
}

// Each makes a sequence and takes something out of it.
std::vector<OperatorCase> sequence_cases() {
  std::vector<OperatorCase> all;
  const auto add = [&](const std::string& op, const auto& fill) {
    auto made = with_graph(op, "of a sequence");
    auto& graph = *made.model.mutable_graph();
    add_known(graph, "at", {dag::DType::I64, {}}, {0});
    fill(graph);
    all.push_back(std::move(made));
  };
  add("SequenceConstruct", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceAt", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceEmpty", [](auto& graph) {
    add_attribute(add_node(graph, "SequenceEmpty", {}, {"none"}), "dtype=1");
    add_node(graph, "SequenceInsert", {"none", "x"}, {"s"});
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("SequenceInsert", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceInsert", {"s", "x", "at"}, {"t"});
    add_node(graph, "SequenceAt", {"t", "at"}, {"y"});
  });
  add("SequenceErase", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceErase", {"s", "at"}, {"t"});
    add_node(graph, "SequenceAt", {"t", "at"}, {"y"});
  });
  add("SequenceLength", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    add_node(graph, "SequenceLength", {"s"}, {"y"});
  });
  add("SplitToSequence", [](auto& graph) {
    add_known(graph, "sizes", {dag::DType::I64, {2}}, {1, 2});
    auto& node = add_node(graph, "SplitToSequence", {"x", "sizes"}, {"s"});
    add_attribute(node, "axis=1");
    add_attribute(node, "keepdims=0");
    add_node(graph, "SequenceAt", {"s", "at"}, {"y"});
  });
  add("ConcatFromSequence", [](auto& graph) {
    add_node(graph, "SequenceConstruct", {"x", "x"}, {"s"});
    auto& node = add_node(graph, "ConcatFromSequence", {"s"}, {"y"});
    add_attribute(node, "axis=0");
    add_attribute(node, "new_axis=1");
  });
  return all;
}

std::vector<OperatorCase> make_cases() {
  std::vector<OperatorCase> all;
  for (const auto& line : split(kLines, '\n'))
    if (!line.empty()) all.push_back(read_line(line));
  for (auto& made : sequence_cases()) all.push_back(std::move(made));
  all.push_back(if_case(true));
  all.push_back(if_case(false));
  all.push_back(loop_case());
  all.push_back(scan_case());
  return all;
}

// ---- mutations

template <typename Graph, typename Visit>
void visit_all_nodes(Graph& graph, const Visit& visit) {
  for (auto& node : *graph.mutable_node()) {
    visit(node);
    for (auto& attribute : *node.mutable_attribute())
      if (attribute.has_g()) visit_all_nodes(*attribute.mutable_g(), visit);
  }
}

template <typename List>
void erase(List& list, int from, int count) {
  list.DeleteSubrange(from, count);
}

bool mutate_inputs(pb::NodeProto& node, Mutation mutation, int place, int form) {
  auto& inputs = *node.mutable_input();
  if (place >= inputs.size()) return false;
  switch (mutation) {
    case Mutation::DropInput:
      if (form > 0) return false;
      erase(inputs, place, 1);
      return true;
    case Mutation::EmptyInput:
      if (form > 0) return false;
      inputs[place].clear();
      return true;
    case Mutation::DoubleInput:
      if (form > 1) return false;
      for (int times = 0; times <= 8 * form; ++times) node.add_input(inputs[place]);
      return true;
    case Mutation::CutInputs:
      if (form > 0) return false;
      erase(inputs, place, inputs.size() - place);
      return true;
    default:
      if (form >= inputs.size() || form == place) return false;
      inputs[place] = std::string(inputs[form]);
      return true;
  }
}

bool mutate_outputs(pb::NodeProto& node, Mutation mutation, int place, int form, pb::GraphProto& graph) {
  auto& outputs = *node.mutable_output();
  if (mutation == Mutation::AddOutput) {
    if (place > 5 || form > 1) return false;
    for (int i = 0; i <= place; ++i) node.add_output("more" + std::to_string(i));
    if (form == 1) graph.add_output()->set_name("more" + std::to_string(place));
    return true;
  }
  if (place >= outputs.size() || form > 0) return false;
  if (mutation == Mutation::DropOutput) erase(outputs, place, 1);
  if (mutation == Mutation::EmptyOutput) outputs[place].clear();
  if (mutation == Mutation::CutOutputs) erase(outputs, place, outputs.size() - place);
  return true;
}

void empty(pb::AttributeProto& attribute) {
  const auto type = attribute.type();
  const std::string name = attribute.name();
  attribute.Clear();
  attribute.set_name(name);
  attribute.set_type(type);
  if (type == pb::AttributeProto::GRAPH) attribute.mutable_g();
  if (type == pb::AttributeProto::TENSOR) attribute.mutable_t();
}

bool change_int(pb::AttributeProto& attribute, int form) {
  constexpr int64_t kValues[] = {
      0, 1, -1, 2, 3, 16, 1 << 20, std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()};
  if (form >= static_cast<int>(std::size(kValues))) return false;
  attribute.set_i(kValues[form]);
  return true;
}

bool change_float(pb::AttributeProto& attribute, int form) {
  constexpr float kValues[] = {
      0, -1, 1e30f, 1e-30f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  if (form >= static_cast<int>(std::size(kValues))) return false;
  attribute.set_f(kValues[form]);
  return true;
}

bool change_ints(pb::AttributeProto& attribute, int form) {
  auto& values = *attribute.mutable_ints();
  constexpr int64_t kValues[] = {0, -1, 100, std::numeric_limits<int64_t>::max()};
  if (form == 0) attribute.add_ints(1);
  if (form == 1 && !values.empty()) values.RemoveLast();
  if (form >= 2 && form < 6)
    for (auto& value : values) value = kValues[form - 2];
  if (form >= 6 && form < 10) attribute.add_ints(kValues[form - 6]);
  if (form == 10)
    for (int i = 0; i < 40; ++i) attribute.add_ints(1);
  return form <= 10;
}

bool change_attribute(pb::AttributeProto& attribute, int form) {
  switch (attribute.type()) {
    case pb::AttributeProto::INT:
      return change_int(attribute, form);
    case pb::AttributeProto::FLOAT:
      return change_float(attribute, form);
    case pb::AttributeProto::INTS:
      return change_ints(attribute, form);
    case pb::AttributeProto::FLOATS:
      if (form > 1) return false;
      if (form == 0) attribute.add_floats(1);
      if (form == 1 && attribute.floats_size() > 0) attribute.mutable_floats()->RemoveLast();
      return true;
    case pb::AttributeProto::STRING:
      if (form > 0) return false;
      attribute.set_s("neither");
      return true;
    case pb::AttributeProto::STRINGS:
      if (form > 1) return false;
      if (form == 0) attribute.add_strings("Tanh");
      if (form == 1 && attribute.strings_size() > 0) attribute.mutable_strings()->RemoveLast();
      return true;
    case pb::AttributeProto::GRAPH: {
      auto& body = *attribute.mutable_g();
      if (form == 0) add_port(*body.mutable_input(), "one_more");
      if (form == 1 && body.input_size() > 0) body.mutable_input()->RemoveLast();
      if (form == 2 && body.output_size() > 0) body.mutable_output()->RemoveLast();
      if (form == 3 && body.output_size() > 0) *body.add_output() = pb::ValueInfoProto(body.output(0));
      if (form == 4) body.clear_node();
      return form <= 4;
    }
    default:
      return false;
  }
}

bool mutate_attributes(pb::NodeProto& node, Mutation mutation, int place, int form) {
  auto& attributes = *node.mutable_attribute();
  if (place >= attributes.size()) return false;
  if (mutation == Mutation::ChangeAttribute) return change_attribute(attributes[place], form);
  if (form > 0) return false;
  if (mutation == Mutation::DropAttribute) erase(attributes, place, 1);
  if (mutation == Mutation::EmptyAttribute) empty(attributes[place]);
  if (mutation == Mutation::DoubleAttribute) *node.add_attribute() = pb::AttributeProto(attributes[place]);
  return true;
}

bool change_shape(std::vector<int64_t>& shape, int form) {
  const size_t last = shape.empty() ? 0 : shape.size() - 1;
  if (form == 0) shape.clear();
  if (form == 1) shape = {0};
  if (form == 2) shape.push_back(1);
  if (form == 3) shape.insert(shape.begin(), 2);
  if (form == 4 && !shape.empty()) shape.pop_back();
  if (form == 5 && !shape.empty()) shape[0] = 0;
  if (form == 6 && !shape.empty()) shape[last] = 0;
  if (form == 7 && !shape.empty()) shape[0] += 1;
  if (form == 8 && !shape.empty()) shape[last] += 1;
  if (form == 9) shape = std::vector<int64_t>(10, 1);
  if (form == 10 && !shape.empty()) shape[last] = 1;
  return form <= 10;
}

constexpr dag::DType kTypes[] = {dag::DType::F32,  dag::DType::F64, dag::DType::F16, dag::DType::BF16,
                                 dag::DType::I8,   dag::DType::U8,  dag::DType::I32, dag::DType::I64,
                                 dag::DType::Bool, dag::DType::U64};

// Input or initializer `place`: its shape or its type another one.
bool mutate_tensor(pb::GraphProto& graph, Mutation mutation, int place, int form) {
  const bool is_input = place < graph.input_size();
  if (!is_input && place - graph.input_size() >= graph.initializer_size()) return false;
  if (mutation == Mutation::ChangeType && form >= static_cast<int>(std::size(kTypes))) return false;
  if (is_input) {
    auto& type = *graph.mutable_input(place)->mutable_type()->mutable_tensor_type();
    if (mutation == Mutation::ChangeType) {
      type.set_elem_type(dtype_to_onnx(kTypes[form]));
      return true;
    }
    std::vector<int64_t> shape;
    for (const auto& dim : type.shape().dim()) shape.push_back(dim.dim_value());
    if (!change_shape(shape, form)) return false;
    type.mutable_shape()->clear_dim();
    for (const int64_t dim : shape) type.mutable_shape()->add_dim()->set_dim_value(dim);
    return true;
  }
  auto& proto = *graph.mutable_initializer(place - graph.input_size());
  const auto old = tensor_from_proto(proto, fuzz::small_limits());
  if (!old) return false;
  dag::TensorSpec spec = old->spec();
  if (mutation == Mutation::ChangeType) spec.dtype = kTypes[form];
  if (mutation == Mutation::ChangeShape && !change_shape(spec.shape, form)) return false;
  std::vector<double> values = to_doubles(*old);
  if (values.empty()) values.push_back(1);
  const size_t have = values.size(), want = static_cast<size_t>(spec.element_count());
  for (size_t i = have; i < want; ++i) values.push_back(values[i % have]);
  values.resize(want);
  const std::string name = proto.name();
  proto.Clear();
  proto.set_name(name);
  set_tensor(proto, spec, values);
  return true;
}

bool change_opset(pb::ModelProto& model, int form) {
  constexpr int64_t kVersions[] = {6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 18, 20, 21, 23, 24};
  if (form >= static_cast<int>(std::size(kVersions))) return false;
  model.mutable_opset_import(0)->set_version(kVersions[form]);
  return true;
}

void drop_lost_outputs(pb::GraphProto& graph) {
  std::set<std::string> made;
  for (const auto& node : graph.node()) made.insert(node.output().begin(), node.output().end());
  for (int i = graph.output_size(); i-- > 0;)
    if (!made.contains(graph.output(i).name())) erase(*graph.mutable_output(), i, 1);
}

// ---- use

using Values = std::vector<dag::Tensor>;

// What a graph of few operations computes, inputs and all.
void run_if_small(const dag::Graph& graph, const dag::Weights& weights) {
  constexpr int64_t kFlopsMax = 1'000'000;
  int64_t flops = 0;
  for (const dag::Op& op : graph.ops()) flops += std::min(kFlopsMax, dag::op_flops(graph, op).value);
  if (flops > kFlopsMax) return;
  Values values(graph.values().size());
  for (const dag::Op& op : graph.ops()) {
    dag::Tensor& first = values[op.outputs[0].index];
    if (op.kind == dag::OpKind::Input) {
      first = dag::Tensor(graph.spec(op.outputs[0]));
    } else if (op.kind == dag::OpKind::Initializer) {
      first = weights.find(op.attributes.get_string(dag::Attr::Name))->second;
    } else if (op.kind == dag::OpKind::Constant) {
      first = graph.constant(op);
    } else {
      std::vector<const dag::Tensor*> operands;
      std::vector<dag::TensorSpec> specs;
      for (const dag::ValueId input : op.inputs)
        operands.push_back(input.valid() ? &values[input.index] : nullptr);
      for (const dag::ValueId output : op.outputs) specs.push_back(graph.spec(output));
      auto results = peer::evaluate_reference(op, operands, specs);
      if (!results) return;
      for (size_t i = 0; i < results->size(); ++i) values[op.outputs[i].index] = std::move((*results)[i]);
    }
  }
}

// The graph with a loss over its first float output, and the backward.
void differentiate_all(const ImportedModel& imported) {
  const auto graph = dag::canonicalise(imported.graph, dag::op_table());
  if (!graph) return;
  for (const auto& output : graph->outputs()) {
    const dag::TensorSpec spec = graph->spec(output.value);
    if (output.role != dag::OutputRole::Prediction || !is_float(spec.dtype)) continue;
    dag::LossSpec loss;
    loss.type = dag::LossType::Mse;
    loss.prediction = output.name;
    loss.target = "t";
    const dag::TermColumns columns{.target = spec};
    const auto with_loss =
        dag::attach_training_loss(*graph, {&loss, 1}, {&columns, 1}, /*microbatches=*/1, dag::op_table());
    if (!with_loss) continue;
    const auto differentiated = dag::differentiate(with_loss->graph, dag::op_table());
    if (!differentiated) return;
    for (const dag::Layout layout : {dag::Layout::Plain, dag::Layout::Blocked8})
      (void)dag::lower(*differentiated, dag::op_table(), {true, true, layout});
    return run_if_small(*differentiated, imported.weights);
  }
}

}  // namespace

const std::vector<OperatorCase>& operator_cases() {
  static const std::vector<OperatorCase> all = make_cases();
  return all;
}

std::string_view to_string(Mutation mutation) {
  constexpr std::string_view kNames[] = {
      "drop input",       "empty input",    "double input",    "cut inputs",
      "other input",      "drop output",    "empty output",    "add output",
      "cut outputs",      "drop attribute", "empty attribute", "double attribute",
      "change attribute", "change shape",   "change type",     "change opset"};
  return kNames[static_cast<size_t>(mutation)];
}

int count_nodes(const pb::ModelProto& model) {
  pb::ModelProto copy = model;
  int count = 0;
  visit_all_nodes(*copy.mutable_graph(), [&](const auto&) { ++count; });
  return count;
}

bool mutate(pb::ModelProto& model, int node, Mutation mutation, int place, int form) {
  auto& graph = *model.mutable_graph();
  if (mutation == Mutation::ChangeOpset) return place == 0 && node == 0 && change_opset(model, form);
  if (mutation == Mutation::ChangeShape || mutation == Mutation::ChangeType)
    return node == 0 && mutate_tensor(graph, mutation, place, form);
  pb::NodeProto* found = nullptr;
  int at = 0;
  visit_all_nodes(graph, [&](auto& each) {
    if (at++ == node) found = &each;
  });
  if (!found) return false;
  bool changed = false;
  if (mutation <= Mutation::OtherInput) {
    changed = mutate_inputs(*found, mutation, place, form);
  } else if (mutation <= Mutation::CutOutputs) {
    changed = mutate_outputs(*found, mutation, place, form, graph);
  } else {
    changed = mutate_attributes(*found, mutation, place, form);
  }
  drop_lost_outputs(graph);
  return changed;
}

bool use_model(const pb::ModelProto& proto) {
  const std::string bytes = proto.SerializeAsString();
  const auto model = read_model(std::as_bytes(std::span(bytes.data(), bytes.size())), fuzz::small_limits());
  if (!model) return false;
  (void)shape_inputs(*model);
  (void)trained_bytes(*model, {});
  ImportOptions options;
  options.evaluate = peer::evaluate_reference;
  options.limits = fuzz::small_limits();
  options.batch = 2;
  (void)inspect_model(*model, options, dag::op_table());
  const auto inference = import_model(*model, options, dag::op_table());
  if (inference) run_if_small(inference->graph, inference->weights);
  options.training = true;
  const auto imported = import_model(*model, options, dag::op_table());
  if (!imported) {
    WEFT_CHECK(!imported.error().message.empty());
    return false;
  }
  differentiate_all(*imported);
  return true;
}

}  // namespace weft::onnx::testing

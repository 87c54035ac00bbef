//! The committed bindings, held to those that another crate makes of the installed headers.

use core::mem::{align_of, offset_of};

use rdma_sys as other;

/// Size, alignment and the places of the fields that are used.
macro_rules! same_layout {
    ($($name:ident { $($field:ident)* })*) => { $(
        assert_eq!(size_of::<super::$name>(), size_of::<other::$name>(), stringify!($name));
        assert_eq!(align_of::<super::$name>(), align_of::<other::$name>(), stringify!($name));
        $(assert_eq!(
            offset_of!(super::$name, $field),
            offset_of!(other::$name, $field),
            concat!(stringify!($name), ".", stringify!($field)),
        );)*
    )* };
}

#[test]
fn structures_are_laid_out_alike() {
    same_layout! {
        ibv_device_attr { fw_ver max_mr_size max_qp max_qp_wr max_sge max_cq max_cqe max_mr
            max_qp_rd_atom max_qp_init_rd_atom atomic_cap max_srq max_srq_wr phys_port_cnt }
        ibv_port_attr { state max_mtu active_mtu gid_tbl_len lid link_layer }
        ibv_wc { wr_id status opcode vendor_err byte_len qp_num wc_flags }
        ibv_sge { addr length lkey }
        ibv_send_wr { wr_id next sg_list num_sge opcode send_flags wr }
        ibv_recv_wr { wr_id next sg_list num_sge }
        ibv_srq_init_attr { srq_context attr }
        ibv_srq_attr { max_wr max_sge srq_limit }
        ibv_qp_cap { max_send_wr max_recv_wr max_send_sge max_recv_sge max_inline_data }
        ibv_qp_init_attr { qp_context send_cq recv_cq srq cap qp_type sq_sig_all }
        ibv_qp_attr { qp_state path_mtu rq_psn sq_psn dest_qp_num qp_access_flags ah_attr
            max_rd_atomic max_dest_rd_atomic min_rnr_timer port_num timeout retry_cnt rnr_retry }
        ibv_mr { context pd addr length lkey rkey }
        ibv_qp { context qp_context pd send_cq recv_cq srq handle qp_num state qp_type }
        ibv_cq { context channel cq_context handle cqe }
        ibv_comp_channel { context fd }
        ibv_async_event { element event_type }
        ibv_context { device ops cmd_fd async_fd num_comp_vectors mutex abi_compat }
        ibv_gid { raw }
        ibv_gid_entry { gid gid_index port_num gid_type }
        rdma_cm_id { verbs channel context qp route ps port_num }
        rdma_cm_event { id listen_id event status param }
        rdma_conn_param { private_data private_data_len responder_resources initiator_depth
            flow_control retry_count rnr_retry_count srq qp_num }
        rdma_event_channel { fd }
    }
    assert_eq!(
        offset_of!(super::verbs_context, context),
        offset_of!(other::verbs_context, context)
    );
}

/// Values of constants that are enumerations there.
macro_rules! same_values {
    ($($kind:ident: $($name:ident)*;)*) => { $($(
        assert_eq!(i64::from(super::$name), value(other::$kind::$name), stringify!($name));
    )*)* };
}

/// The number behind a constant of either style.
fn value<T: Copy>(constant: T) -> i64 {
    assert_eq!(size_of::<T>(), 4);
    // SAFETY: enumerations of C are four plain bytes; the size was compared.
    i64::from(unsafe { core::mem::transmute_copy::<T, u32>(&constant) })
}

#[test]
fn constants_are_the_same() {
    same_values! {
        ibv_wr_opcode: IBV_WR_RDMA_WRITE IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ
            IBV_WR_ATOMIC_CMP_AND_SWP IBV_WR_ATOMIC_FETCH_AND_ADD;
        ibv_send_flags: IBV_SEND_SIGNALED IBV_SEND_INLINE IBV_SEND_FENCE;
        ibv_access_flags: IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_WRITE
            IBV_ACCESS_REMOTE_ATOMIC;
        ibv_wc_status: IBV_WC_SUCCESS IBV_WC_LOC_LEN_ERR IBV_WC_LOC_PROT_ERR IBV_WC_WR_FLUSH_ERR
            IBV_WC_REM_ACCESS_ERR IBV_WC_RETRY_EXC_ERR IBV_WC_RNR_RETRY_EXC_ERR
            IBV_WC_FATAL_ERR;
        ibv_wc_opcode: IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_COMP_SWAP
            IBV_WC_FETCH_ADD IBV_WC_RECV;
        ibv_qp_type: IBV_QPT_RC;
        ibv_qp_state: IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR;
        ibv_qp_attr_mask: IBV_QP_STATE IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_ACCESS_FLAGS IBV_QP_AV
            IBV_QP_PATH_MTU IBV_QP_DEST_QPN IBV_QP_RQ_PSN IBV_QP_MIN_RNR_TIMER IBV_QP_TIMEOUT
            IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_SQ_PSN IBV_QP_MAX_QP_RD_ATOMIC
            IBV_QP_MAX_DEST_RD_ATOMIC;
        ibv_srq_attr_mask: IBV_SRQ_LIMIT;
        rdma_port_space: RDMA_PS_TCP;
        rdma_cm_event_type: RDMA_CM_EVENT_ADDR_RESOLVED RDMA_CM_EVENT_ADDR_ERROR
            RDMA_CM_EVENT_ROUTE_RESOLVED RDMA_CM_EVENT_ROUTE_ERROR
            RDMA_CM_EVENT_CONNECT_REQUEST RDMA_CM_EVENT_UNREACHABLE RDMA_CM_EVENT_REJECTED
            RDMA_CM_EVENT_ESTABLISHED RDMA_CM_EVENT_DISCONNECTED RDMA_CM_EVENT_DEVICE_REMOVAL
            RDMA_CM_EVENT_TIMEWAIT_EXIT;
    }
}
